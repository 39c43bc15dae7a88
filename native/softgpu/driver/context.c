#include "context.h"

#include "handle.h"

#include <pthread.h>

/* ---- the list of all ---- */

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

struct CUctx_st *driver_context_next(const struct CUctx_st *context)
{
	return context->listed ? context->next : all_contexts;
}

static void list_add(struct CUctx_st *context)
{
	pthread_mutex_lock(&list_lock);
	context->next = all_contexts;
	context->listed = true;
	all_contexts = context;
	pthread_mutex_unlock(&list_lock);
}

void driver_context_unlist(struct CUctx_st *context)
{
	struct CUctx_st **link = &all_contexts;

	pthread_mutex_lock(&list_lock);
	while (*link && *link != context)
		link = &(*link)->next;
	if (*link)
		*link = context->next;
	context->listed = false;
	pthread_mutex_unlock(&list_lock);
}

/* ---- life ---- */

void driver_context_hold(struct CUctx_st *context)
{
	__atomic_add_fetch(&context->references, 1, __ATOMIC_RELAXED);
}

void driver_context_drop(struct CUctx_st *context)
{
	if (!__atomic_sub_fetch(&context->references, 1, __ATOMIC_ACQ_REL))
		driver_handle_retire(context, sizeof *context);
}

struct CUctx_st *driver_context_make(struct driver_device *device, bool primary)
{
	static uint64_t last_id;
	struct CUctx_st *context = driver_handle_allocate(sizeof *context);

	if (!context)
		return NULL;
	context->device = device;
	context->primary = primary;
	context->references = 1;
	context->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
	/* A primary one is there, whatever ends. */
	if (driver_handle_add(context, DRIVER_KIND_CONTEXT, primary ? NULL : &context->users)) {
		driver_handle_retire(context, sizeof *context);
		return NULL;
	}
	list_add(context);
	return context;
}

/* ---- state ---- */

bool driver_context_flags_are_valid(unsigned flags)
{
	unsigned schedule = flags & CU_CTX_SCHED_MASK;

	return !(flags & ~(unsigned)CU_CTX_FLAGS_MASK) &&
	       (schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN ||
		schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC);
}

CUresult driver_context_use(struct CUctx_st *context)
{
	return driver_call_use(&context->users) && __atomic_load_n(&context->active, __ATOMIC_ACQUIRE) ?
		CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult driver_context_state(struct CUctx_st *context)
{
	CUresult result = driver_context_use(context);

	return result ? result : __atomic_load_n(&context->error, __ATOMIC_ACQUIRE);
}

void driver_context_fail(struct CUctx_st *context, CUresult error)
{
	CUresult none = CUDA_SUCCESS;

	__atomic_compare_exchange_n(&context->error, &none, error, false, __ATOMIC_ACQ_REL,
				    __ATOMIC_RELAXED);
}
