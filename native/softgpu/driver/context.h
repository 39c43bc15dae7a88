/* context.h - contexts: primary and created ones, and which is current.
 *
 *            cuDevicePrimaryCtxRetain / cuCtxCreate
 *   inactive ---------------------------------------> active
 *      ^                                                |
 *      +------- last Release, Reset / cuCtxDestroy -----+
 *
 * Only an active context has streams, modules and memory.  A primary context's
 * handle is valid before the first retain (the CUDA runtime makes it current
 * first and retains it later) and the same after a reset; while its work ends it
 * is still active, no new call works in it, and who wants it again waits.  A created context
 * that was destroyed stays allocated while some thread still has it on its
 * stack, so that calls there can say CUDA_ERROR_CONTEXT_IS_DESTROYED.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_CONTEXT_H
#define FARBUS_SOFTGPU_DRIVER_CONTEXT_H

#include "device.h"

#define DRIVER_CONTEXT_STACK_MAX 64	/* contexts on one thread's stack */
#define DRIVER_LIMIT_COUNT CU_LIMIT_MAX

struct CUctx_st {
	struct CUctx_st *next;		/* of all contexts that have a handle */
	struct driver_device *device;
	uint64_t id;			/* unique in this process, also across resets */
	unsigned references;		/* of thread stacks, streams and the handle; atomic */
	unsigned retained;		/* primary: retains; created: 1 while it lives */
	bool primary;
	bool active;			/* atomic */
	bool ending;			/* active, but its work is awaited: nobody retains or releases it */
	bool listed;			/* under the lock of the list */
	struct driver_users users;	/* calls that work in it; refused while it is ending */
	unsigned flags;
	int cancel;			/* atomic: kernels end early, for the context goes */
	CUresult error;			/* sticky, atomic; 0 while all is well */
	CUfunc_cache cache_config;
	size_t limits[DRIVER_LIMIT_COUNT];
	uint32_t peers;			/* bit per device ordinal whose memory may be used */
	/* Guarded by the queue lock of queue.c. */
	struct CUstream_st *legacy;
	struct CUstream_st *streams;	/* all of them, linked by their next */
	/* Guarded by the lock of module.c. */
	struct CUmod_st *modules;
};

/* One that is not active, with a handle and a reference; NULL without memory. */
struct CUctx_st *driver_context_make(struct driver_device *device, bool primary);
void driver_context_hold(struct CUctx_st *context);
void driver_context_drop(struct CUctx_st *context);

/* Walk over all contexts, from driver_context_first by their next, between
 * these two. */
void driver_context_each_lock(void);
void driver_context_each_unlock(void);
struct CUctx_st *driver_context_first(void);
/* The one behind it; the first when it has left the list. */
struct CUctx_st *driver_context_next(const struct CUctx_st *context);
/* It is none of them any more. */
void driver_context_unlist(struct CUctx_st *context);

/* Are these flags that a context can have? */
bool driver_context_flags_are_valid(unsigned flags);
/* What is wrong with a context, if anything: destroyed, ending or broken.  Unless it is one of the
 * first two, it does not end before the call returns. */
CUresult driver_context_state(struct CUctx_st *context);
/* The same without the sticky error. */
CUresult driver_context_use(struct CUctx_st *context);
/* The first error of a context stays with it; all its later work is void. */
void driver_context_fail(struct CUctx_st *context, CUresult error);

#endif
