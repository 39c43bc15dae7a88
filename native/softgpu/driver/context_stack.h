/* context_stack.h - the calling thread's stack of contexts, and so which is current. */
#ifndef FARBUS_SOFTGPU_DRIVER_CONTEXT_STACK_H
#define FARBUS_SOFTGPU_DRIVER_CONTEXT_STACK_H

#include "context.h"

/* CUDA_ERROR_INVALID_CONTEXT: the stack is full. */
CUresult driver_context_push(struct CUctx_st *context, struct CUgreenCtx_st *green);
/* There is one. */
void driver_context_pop(void);
/* The top of the stack, whatever its state, or NULL. */
struct CUctx_st *driver_context_top(void);
/* The green context that is current, or NULL. */
struct CUgreenCtx_st *driver_context_top_green(void);
/* What is current, as the program names it. */
CUcontext driver_context_top_handle(void);

/* The prologue of every call that works in the current context: ready, a
 * context there and alive, and no sticky error. */
CUresult driver_context_enter(struct CUctx_st **context);
/* The same without the sticky error: for calls that only ask. */
CUresult driver_context_current(struct CUctx_st **context);
/* The context that a call with an optional context means, in whatever state; NULL: the current one. */
CUresult driver_context_wanted(CUcontext wanted, struct CUctx_st **context);

#endif
