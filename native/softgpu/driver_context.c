#include "driver_context.h"

#include "driver_array.h"
#include "driver_capture.h"
#include "driver_cudart.h"
#include "driver_graph_memory.h"
#include "driver_green.h"
#include "driver_handle.h"
#include "driver_memory.h"
#include "driver_module.h"
#include "driver_stream.h"

#include <pthread.h>

/* Guards activation, retain counts and flags; taken before the locks of
 * streams, modules and memory, never after them. */
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the calling thread's stack of contexts ---- */

struct context_stack {
	unsigned depth;
	struct CUctx_st *contexts[DRIVER_CONTEXT_STACK_MAX];
	struct CUgreenCtx_st *greens[DRIVER_CONTEXT_STACK_MAX];	/* or NULL */
};

static _Thread_local struct context_stack stack;
static pthread_key_t stack_key;
static pthread_once_t stack_once = PTHREAD_ONCE_INIT;

static void stack_end(void *unused)
{
	(void)unused;
	while (stack.depth) {
		driver_green_drop(stack.greens[--stack.depth]);
		driver_context_drop(stack.contexts[stack.depth]);
	}
}

static void stack_make_key(void)
{
	pthread_key_create(&stack_key, stack_end);
}

static CUresult stack_push(struct CUctx_st *context, struct CUgreenCtx_st *green)
{
	if (stack.depth == DRIVER_CONTEXT_STACK_MAX)
		return CUDA_ERROR_INVALID_CONTEXT;
	/* Any value but NULL makes the destructor run when the thread ends. */
	pthread_once(&stack_once, stack_make_key);
	pthread_setspecific(stack_key, &stack);
	driver_context_hold(context);
	driver_green_hold(green);
	stack.greens[stack.depth] = green;
	stack.contexts[stack.depth++] = context;
	return CUDA_SUCCESS;
}

struct CUctx_st *driver_context_top(void)
{
	return stack.depth ? stack.contexts[stack.depth - 1] : NULL;
}

struct CUgreenCtx_st *driver_context_top_green(void)
{
	return stack.depth ? stack.greens[stack.depth - 1] : NULL;
}

/* As the program names it. */
static CUcontext stack_top_handle(void)
{
	struct CUgreenCtx_st *green = driver_context_top_green();

	return green ? (CUcontext)(void *)&green->as_context : driver_context_top();
}

static void stack_pop(void)
{
	driver_green_drop(stack.greens[--stack.depth]);
	driver_context_drop(stack.contexts[stack.depth]);
}

/* ---- life ---- */

/* Taken after all other locks but those of memory and handles. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st *all_contexts;

void driver_context_each_lock(void)
{
	pthread_mutex_lock(&list_lock);
}

void driver_context_each_unlock(void)
{
	pthread_mutex_unlock(&list_lock);
}

struct CUctx_st *driver_context_first(void)
{
	return all_contexts;
}

static void list_add(struct CUctx_st *context)
{
	pthread_mutex_lock(&list_lock);
	context->next = all_contexts;
	all_contexts = context;
	pthread_mutex_unlock(&list_lock);
}

static void list_remove(struct CUctx_st *context)
{
	struct CUctx_st **link = &all_contexts;

	pthread_mutex_lock(&list_lock);
	while (*link && *link != context)
		link = &(*link)->next;
	if (*link)
		*link = context->next;
	pthread_mutex_unlock(&list_lock);
}

void driver_context_hold(struct CUctx_st *context)
{
	__atomic_add_fetch(&context->references, 1, __ATOMIC_RELAXED);
}

void driver_context_drop(struct CUctx_st *context)
{
	if (!__atomic_sub_fetch(&context->references, 1, __ATOMIC_ACQ_REL))
		driver_handle_retire(context, sizeof *context);
}

static struct CUctx_st *context_make(struct driver_device *device)
{
	static uint64_t last_id;
	struct CUctx_st *context = driver_handle_allocate(sizeof *context);

	if (!context)
		return NULL;
	context->device = device;
	context->references = 1;
	context->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
	if (driver_handle_add(context, DRIVER_KIND_CONTEXT)) {
		driver_handle_retire(context, sizeof *context);
		return NULL;
	}
	list_add(context);
	return context;
}

void driver_context_drain_all(void)
{
	struct CUctx_st *context, *following;

	/* Hold the one at hand, so that its next can be read afterwards.  One that
	 * was destroyed meanwhile has left the list; then start again. */
	driver_context_each_lock();
	for (context = all_contexts; context; context = following) {
		driver_context_hold(context);
		driver_context_each_unlock();
		driver_stream_drain(context);
		driver_context_each_lock();
		following = driver_handle_is(context, DRIVER_KIND_CONTEXT) ? context->next :
									     all_contexts;
		driver_context_drop(context);
	}
	driver_context_each_unlock();
}

CUresult driver_context_make_primary(struct driver_device *device)
{
	device->primary = context_make(device);
	if (!device->primary)
		return CUDA_ERROR_OUT_OF_MEMORY;
	device->primary->primary = true;
	return CUDA_SUCCESS;
}

void driver_context_free_primary(struct driver_device *device)
{
	driver_handle_remove(device->primary, DRIVER_KIND_CONTEXT);
	list_remove(device->primary);
	driver_context_drop(device->primary);
	device->primary = NULL;
}

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

/* With the lock.  Work that was submitted finishes first; then everything that
 * the context owns goes.  False when it was not active. */
static bool context_deactivate(struct CUctx_st *context)
{
	if (!context->active)
		return false;
	end_work(context);
	__atomic_store_n(&context->active, false, __ATOMIC_RELEASE);
	driver_capture_end_context(context);
	driver_graph_memory_end_context(context);
	driver_stream_end_context(context);
	driver_module_end_context(context);
	driver_texture_end_context(context);
	driver_array_end_context(context);
	driver_memory_end_context(context);
	board_context_leave(context->device->board);
	return true;
}

CUresult driver_context_state(const struct CUctx_st *context)
{
	if (!__atomic_load_n(&context->active, __ATOMIC_ACQUIRE))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return __atomic_load_n(&context->error, __ATOMIC_ACQUIRE);
}

void driver_context_fail(struct CUctx_st *context, CUresult error)
{
	CUresult none = CUDA_SUCCESS;

	__atomic_compare_exchange_n(&context->error, &none, error, false, __ATOMIC_ACQ_REL,
				    __ATOMIC_RELAXED);
}

CUresult driver_context_current(struct CUctx_st **context)
{
	CUresult result = driver_ready();
	struct CUctx_st *top = driver_context_top();

	if (result)
		return result;
	if (!top)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!__atomic_load_n(&top->active, __ATOMIC_ACQUIRE) ||
	    (driver_context_top_green() &&
	     __atomic_load_n(&driver_context_top_green()->ended, __ATOMIC_ACQUIRE)))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*context = top;
	return CUDA_SUCCESS;
}

CUresult driver_context_enter(struct CUctx_st **context)
{
	CUresult result = driver_context_current(context);

	return result ? result : driver_context_state(*context);
}

/* ---- primary contexts ---- */

static CUresult primary_of(CUdevice ordinal, struct CUctx_st **context)
{
	struct driver_device *device;
	CUresult result = driver_ready();

	if (result)
		return result;
	device = driver_device_at(ordinal);
	if (!device)
		return CUDA_ERROR_INVALID_DEVICE;
	*context = device->primary;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal)
{
	struct CUctx_st *context;
	CUresult result = primary_of(ordinal, &context);

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&context_lock);
	if (!context->active)
		result = context_activate(context);
	if (!result) {
		context->retained++;
		*out = context;
	}
	pthread_mutex_unlock(&context_lock);
	return result;
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	struct CUctx_st *context;
	CUresult result = primary_of(ordinal, &context);
	bool ended = false;

	if (result)
		return result;
	pthread_mutex_lock(&context_lock);
	if (!context->retained)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (!--context->retained)
		ended = context_deactivate(context);
	pthread_mutex_unlock(&context_lock);
	if (ended)
		driver_cudart_end_context(context);
	return result;
}

/* Everything in the context goes, whoever retained it; the next retain makes it
 * active again. */
DRIVER_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
	struct CUctx_st *context;
	CUresult result = primary_of(ordinal, &context);
	bool ended;

	if (result)
		return result;
	pthread_mutex_lock(&context_lock);
	ended = context_deactivate(context);
	context->retained = 0;
	context->flags = 0;
	pthread_mutex_unlock(&context_lock);
	if (ended)
		driver_cudart_end_context(context);
	return CUDA_SUCCESS;
}

/* The versions before CUDA 11 differ in nothing that is left. */
DRIVER_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
	return cuDevicePrimaryCtxRelease_v2(ordinal);
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
	return cuDevicePrimaryCtxReset_v2(ordinal);
}

bool driver_context_flags_are_valid(unsigned flags)
{
	unsigned schedule = flags & CU_CTX_SCHED_MASK;

	return !(flags & ~(unsigned)CU_CTX_FLAGS_MASK) &&
	       (schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN ||
		schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC);
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags)
{
	struct CUctx_st *context;
	CUresult result = primary_of(ordinal, &context);

	if (result)
		return result;
	if (!driver_context_flags_are_valid(flags))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&context_lock);
	context->flags = flags;
	pthread_mutex_unlock(&context_lock);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

DRIVER_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags,
						  int *active)
{
	struct CUctx_st *context;
	CUresult result = primary_of(ordinal, &context);

	if (result)
		return result;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&context_lock);
	*flags = context->flags;
	*active = context->active;
	pthread_mutex_unlock(&context_lock);
	return CUDA_SUCCESS;
}

/* ---- created contexts ---- */

static CUresult context_destroy(struct CUctx_st *context)
{
	bool ended;

	pthread_mutex_lock(&context_lock);
	if (!driver_handle_remove(context, DRIVER_KIND_CONTEXT)) {
		pthread_mutex_unlock(&context_lock);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	ended = context_deactivate(context);
	list_remove(context);
	pthread_mutex_unlock(&context_lock);
	if (ended)
		driver_cudart_end_context(context);
	if (driver_context_top() == context)
		stack_pop();
	driver_context_drop(context);
	return CUDA_SUCCESS;
}

static CUresult context_create(CUcontext *out, unsigned flags, CUdevice ordinal)
{
	struct driver_device *device;
	struct CUctx_st *context;
	CUresult result = driver_ready();

	if (result)
		return result;
	device = driver_device_at(ordinal);
	if (!device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!out || !driver_context_flags_are_valid(flags))
		return CUDA_ERROR_INVALID_VALUE;
	context = context_make(device);
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->flags = flags;
	context->retained = 1;
	pthread_mutex_lock(&context_lock);
	result = context_activate(context);
	pthread_mutex_unlock(&context_lock);
	if (!result)
		result = stack_push(context, NULL);
	if (result) {
		context_destroy(context);
		return result;
	}
	*out = context;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice ordinal)
{
	return context_create(out, flags, ordinal);
}

DRIVER_EXPORT CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *affinity, int count,
				      unsigned int flags, CUdevice ordinal)
{
	if (affinity || count)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	return context_create(out, flags, ordinal);
}

DRIVER_EXPORT CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params,
				      unsigned int flags, CUdevice ordinal)
{
	if (params && (params->execAffinityParams || params->numExecAffinityParams))
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	if (params && params->cigParams)
		return driver_unsupported("cuCtxCreate_v4 with cigParams");
	return context_create(out, flags, ordinal);
}

DRIVER_EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_is(context, DRIVER_KIND_CONTEXT) || context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	return context_destroy(context);
}

DRIVER_FIRST_NAME(cuCtxDestroy);

/* Usage counts of contexts ended with CUDA 4; what remains of these two is
 * "create's reference" (cuda.h, "Deprecated Context Management"). */
DRIVER_EXPORT CUresult cuCtxAttach(CUcontext *out, unsigned int flags)
{
	struct CUctx_st *context;
	CUresult result = driver_context_current(&context);

	if (result)
		return result;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_add_fetch(&context->retained, 1, __ATOMIC_RELAXED);
	*out = context;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxDetach(CUcontext context)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_is(context, DRIVER_KIND_CONTEXT) || context->primary ||
	    driver_context_top() != context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (__atomic_sub_fetch(&context->retained, 1, __ATOMIC_RELAXED))
		return CUDA_SUCCESS;
	return context_destroy(context);
}

/* ---- the stack ---- */

DRIVER_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
	struct CUgreenCtx_st *green;
	struct CUctx_st *context;
	CUresult result = driver_ready();

	if (!result)
		result = driver_context_named(handle, &context, &green);
	return result ? result : stack_push(context, green);
}

DRIVER_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!stack.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (out)
		*out = stack_top_handle();
	stack_pop();
	return CUDA_SUCCESS;
}

/* By which cuDNN looks for these, as for the linker's. */
DRIVER_FIRST_NAME(cuCtxPushCurrent);
DRIVER_FIRST_NAME(cuCtxPopCurrent);

DRIVER_EXPORT CUresult cuCtxSetCurrent(CUcontext handle)
{
	struct CUgreenCtx_st *green = NULL;
	struct CUctx_st *context = NULL;
	CUresult result = driver_ready();

	if (!result && handle)
		result = driver_context_named(handle, &context, &green);
	if (result)
		return result;
	if (handle == stack_top_handle())
		return CUDA_SUCCESS;
	if (stack.depth)
		stack_pop();
	return context ? stack_push(context, green) : CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuCtxGetCurrent(CUcontext *out)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = stack_top_handle();
	return CUDA_SUCCESS;
}
