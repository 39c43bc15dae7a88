/* green.h - green contexts: a primary context with some of the device's multiprocessors.
 *
 * A green context owns nothing but a default stream: modules, memory and events are the primary
 * context's.  What makes it is its streams, whose kernels run on its multiprocessors alone: as
 * many of the engine's threads as their share of the device is, and at least one.  The CUcontext
 * that cuCtxFromGreenCtx gives stands for the primary context wherever one may be named, and
 * while it is current, new streams are the green context's.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_GREEN_H
#define FARBUS_SOFTGPU_DRIVER_GREEN_H

#include "context.h"

#define DRIVER_PARTITION_WORDS 4	/* 256 multiprocessors, the most that `sms` can ask for */

struct CUstream_st;

/* Multiprocessors, a bit each. */
struct driver_partition {
	uint64_t bits[DRIVER_PARTITION_WORDS];
};

/* What a green context is made with. */
struct CUdevResourceDesc_st {
	int32_t device;
	struct driver_partition partition;
};

struct CUgreenCtx_st {
	uint64_t id;
	unsigned references;		/* atomic: of the handle, of streams and of threads' stacks */
	bool ended;			/* atomic */
	struct CUctx_st *primary;	/* held */
	struct CUstream_st *stream;	/* the default one, held until it ends */
	struct driver_partition partition;
	char as_context;		/* its address is the CUcontext */
};

void driver_green_hold(struct CUgreenCtx_st *green);
void driver_green_drop(struct CUgreenCtx_st *green);

/* The context that a CUcontext names, and the green context if it stands for one; else NULL.
 * CUDA_ERROR_INVALID_CONTEXT. */
CUresult driver_context_named(CUcontext handle, struct CUctx_st **context,
			      struct CUgreenCtx_st **green);

/* Whose stream runs on this thread; NULL: no green context's. */
extern _Thread_local const struct CUgreenCtx_st *driver_green_running;

unsigned driver_partition_count(const struct driver_partition *partition);
/* How many multiprocessors: of the green context, or of all the device. */
unsigned driver_green_multiprocessors(const struct CUgreenCtx_st *green,
				      const struct driver_device *device);

#endif
