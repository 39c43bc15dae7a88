/* The calling thread's stack of contexts, and so which is current. */
#include "context_stack.h"

#include "context.h"
#include "green.h"

#include <pthread.h>

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

CUresult driver_context_push(struct CUctx_st *context, struct CUgreenCtx_st *green)
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

CUcontext driver_context_top_handle(void)
{
	struct CUgreenCtx_st *green = driver_context_top_green();

	return green ? (CUcontext)(void *)&green->as_context : driver_context_top();
}

void driver_context_pop(void)
{
	driver_green_drop(stack.greens[--stack.depth]);
	driver_context_drop(stack.contexts[stack.depth]);
}

/* ---- prologues ---- */

CUresult driver_context_current(struct CUctx_st **context)
{
	CUresult result = driver_ready();
	struct CUctx_st *top = driver_context_top();

	if (result)
		return result;
	if (!top)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (driver_context_use(top) ||
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

CUresult driver_context_wanted(CUcontext wanted, struct CUctx_st **context)
{
	struct CUgreenCtx_st *green;
	CUresult result;

	if (!wanted)
		return driver_context_current(context);
	result = driver_ready();
	return result ? result : driver_context_named(wanted, context, &green);
}
