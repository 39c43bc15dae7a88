/* How contexts become active and end, with all that they own. */
#include "context_life.h"
#include "log.h"

#include "array.h"
#include "capture.h"
#include "context.h"
#include "context_stack.h"
#include "cudart.h"
#include "graph/memory.h"
#include "handle.h"
#include "memory.h"
#include "mipmap.h"
#include "module.h"
#include "texture.h"

#include <pthread.h>

/* Guards activation, retain counts and flags; taken before the locks of
 * streams, modules and memory, never after them. */
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t context_ended = PTHREAD_COND_INITIALIZER;

/* With the lock. */
static CUresult context_activate(struct CUctx_st *context)
{
	CUresult result;

	context->error = CUDA_SUCCESS;
	__atomic_store_n(&context->cancel, 0, __ATOMIC_RELAXED);
	context->peers = 0;
	context->cache_config = CU_FUNC_CACHE_PREFER_NONE;
	context->limits[CU_LIMIT_STACK_SIZE] = 1024;
	context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
	context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
	context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
	context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
	context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
	result = driver_stream_make_legacy(context);
	if (result)
		return result;
	board_context_enter(context->device->board);
	__atomic_store_n(&context->active, true, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

/* A kernel may be endless: it gets a time of grace, but does not keep the program
 * from ending its context. */
static void end_work(struct CUctx_st *context)
{
	uint64_t grace_ns = driver_options()->grace_ns;

	if (driver_stream_drain_for(context, grace_ns))
		return;
	driver_say("a context is destroyed while its kernels run; they are cancelled "
		   "after %llu s (FARBUS_SOFTGPU=grace_s=N gives more time)",
		   (unsigned long long)(grace_ns / 1000000000u));
	__atomic_store_n(&context->cancel, 1, __ATOMIC_RELAXED);
	driver_stream_drain(context);
}

/* Wait until everything that was submitted to any context is complete; where the wait for one was longer than that,
 * false. */
static bool drain_all(uint64_t ns)
{
	struct CUctx_st *context, *following;
	bool drained = true;

	/* Hold the one at hand, so that its next can be read afterwards. */
	driver_context_each_lock();
	for (context = driver_context_first(); context; context = following) {
		driver_context_hold(context);
		driver_context_each_unlock();
		if (ns == UINT64_MAX)
			driver_stream_drain(context);
		else
			drained = driver_stream_drain_for(context, ns) && drained;
		driver_context_each_lock();
		following = driver_context_next(context);
		driver_context_drop(context);
	}
	driver_context_each_unlock();
	return drained;
}

/* With the lock, which is let go while waiting. */
static void context_await_end(struct CUctx_st *context)
{
	while (context->ending)
		pthread_cond_wait(&context_ended, &context_lock);
}

/* With the lock, when nobody else ends the context.  Calls that work in it and work that was
 * submitted finish first, for which the lock is let go, as that may take long; then everything
 * that the context owns goes.  False when it was not active. */
static bool context_deactivate(struct CUctx_st *context)
{
	bool pinned_is_in_use;

	if (!context->active)
		return false;
	context->ending = true;
	pthread_mutex_unlock(&context_lock);
	/* Streams take nothing new from here on: work comes to an end, and with it each call that waits for some. */
	driver_users_close(&context->users);
	end_work(context);
	driver_users_await(&context->users);
	/* Pinned memory may be everybody's. */
	pinned_is_in_use = driver_memory_has_pinned(context) && !drain_all(driver_options()->grace_ns);
	pthread_mutex_lock(&context_lock);
	__atomic_store_n(&context->active, false, __ATOMIC_RELEASE);
	driver_capture_end_context(context);
	driver_graph_memory_end_context(context);
	driver_stream_end_context(context);
	driver_module_end_context(context);
	driver_texture_end_context(context);
	driver_mipmap_end_context(context);
	driver_array_end_context(context);
	driver_memory_end_context(context, pinned_is_in_use);
	board_context_leave(context->device->board);
	context->ending = false;
	/* One that was destroyed goes with the last who names it: no call uses it any more. */
	if (context->primary)
		driver_users_open(&context->users);
	pthread_cond_broadcast(&context_ended);
	return true;
}

/* ---- primary contexts ---- */

CUresult driver_context_make_primary(struct driver_device *device)
{
	device->primary = driver_context_make(device, true);
	return device->primary ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void driver_context_free_primary(struct driver_device *device)
{
	driver_handle_remove(device->primary, DRIVER_KIND_CONTEXT);
	driver_context_unlist(device->primary);
	driver_context_drop(device->primary);
	device->primary = NULL;
}

CUresult driver_context_retain(struct CUctx_st *context)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&context_lock);
	context_await_end(context);
	if (!context->active)
		result = context_activate(context);
	if (!result)
		context->retained++;
	pthread_mutex_unlock(&context_lock);
	return result;
}

CUresult driver_context_release(struct CUctx_st *context)
{
	CUresult result = CUDA_SUCCESS;
	bool ended = false;

	pthread_mutex_lock(&context_lock);
	context_await_end(context);
	if (!context->retained)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (!--context->retained)
		ended = context_deactivate(context);
	pthread_mutex_unlock(&context_lock);
	if (ended)
		driver_cudart_end_context(context);
	return result;
}

void driver_context_reset(struct CUctx_st *context)
{
	bool ended;

	pthread_mutex_lock(&context_lock);
	context_await_end(context);
	ended = context_deactivate(context);
	context->retained = 0;
	context->flags = 0;
	pthread_mutex_unlock(&context_lock);
	if (ended)
		driver_cudart_end_context(context);
}

void driver_context_set_flags(struct CUctx_st *context, unsigned flags)
{
	pthread_mutex_lock(&context_lock);
	context->flags = flags;
	pthread_mutex_unlock(&context_lock);
}

void driver_context_look(struct CUctx_st *context, unsigned *flags, bool *active)
{
	pthread_mutex_lock(&context_lock);
	*flags = context->flags;
	*active = context->active;
	pthread_mutex_unlock(&context_lock);
}

/* ---- created contexts ---- */

CUresult driver_context_create(struct driver_device *device, unsigned flags, struct CUctx_st **out)
{
	struct CUctx_st *context = driver_context_make(device, false);
	CUresult result;

	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->flags = flags;
	context->retained = 1;
	pthread_mutex_lock(&context_lock);
	result = context_activate(context);
	pthread_mutex_unlock(&context_lock);
	if (!result)
		result = driver_context_push(context, NULL);
	if (result) {
		driver_context_destroy(context);
		return result;
	}
	*out = context;
	return CUDA_SUCCESS;
}

CUresult driver_context_destroy(struct CUctx_st *context)
{
	bool ended;

	pthread_mutex_lock(&context_lock);
	if (!driver_handle_remove(context, DRIVER_KIND_CONTEXT)) {
		pthread_mutex_unlock(&context_lock);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	ended = context_deactivate(context);
	driver_context_unlist(context);
	pthread_mutex_unlock(&context_lock);
	if (ended)
		driver_cudart_end_context(context);
	if (driver_context_top() == context)
		driver_context_pop();
	driver_context_drop(context);
	return CUDA_SUCCESS;
}

/* ---- all of them ---- */

void driver_context_drain_all(void)
{
	drain_all(UINT64_MAX);
}
