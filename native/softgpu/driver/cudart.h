/* cudart.h - what CUDA's runtime keeps with a context. */
#ifndef FARBUS_SOFTGPU_DRIVER_CUDART_H
#define FARBUS_SOFTGPU_DRIVER_CUDART_H

#include "context.h"

/* A context was deactivated: let the runtime forget it.  May call the driver
 * API, so no lock may be held. */
void driver_cudart_end_context(struct CUctx_st *context);

#endif
