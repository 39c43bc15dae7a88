/* resource.h - what several chapters of the driver API tell of multiprocessors. */
#ifndef FARBUS_SOFTGPU_API_RESOURCE_H
#define FARBUS_SOFTGPU_API_RESOURCE_H

#include "../driver/green.h"

/* The multiprocessors of a green context as a resource, or of all the device without. */
CUresult api_resource_tell(const struct driver_device *device, const struct CUgreenCtx_st *green,
			   CUdevResource *resource, CUdevResourceType type);

#endif
