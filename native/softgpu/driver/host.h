/* host.h - functions of the program's that streams call. */
#ifndef FARBUS_SOFTGPU_DRIVER_HOST_H
#define FARBUS_SOFTGPU_DRIVER_HOST_H

#include "queue.h"

CUresult driver_host_prepare(CUhostFn function, void *argument,
			     struct driver_operation **operation);
/* The same for a callback, which is told of an error and of the stream as the program named it. */
CUresult driver_callback_prepare(CUstream stream, CUstreamCallback callback, void *argument,
				 struct driver_operation **operation);

#endif
