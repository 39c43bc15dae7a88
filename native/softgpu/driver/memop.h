/* memop.h - operations on words of memory: a stream that writes them, or waits for them. */
#ifndef FARBUS_SOFTGPU_DRIVER_MEMOP_H
#define FARBUS_SOFTGPU_DRIVER_MEMOP_H

#include "queue.h"

/* *kept becomes the array in the operation. */
CUresult driver_words_prepare(struct CUctx_st *context, const CUstreamBatchMemOpParams *operations,
			      unsigned count, unsigned flags, struct driver_operation **operation,
			      CUstreamBatchMemOpParams **kept);

#endif
