/* fill.h - fills: rows of elements with one value. */
#ifndef FARBUS_SOFTGPU_DRIVER_FILL_H
#define FARBUS_SOFTGPU_DRIVER_FILL_H

#include "queue.h"

/* Is all that a fill says memory of a device? */
CUresult driver_fill_check(const CUDA_MEMSET_NODE_PARAMS *params);
/* One that was checked. */
CUresult driver_fill_submit(struct CUstream_st *stream, const CUDA_MEMSET_NODE_PARAMS *params, bool async);
/* For a graph: the memory may have been freed until it runs. */
CUresult driver_fill_prepare(const CUDA_MEMSET_NODE_PARAMS *params,
			     struct driver_operation **operation);

#endif
