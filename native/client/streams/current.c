/* Which context is current: each thread has a stack of them. */
#include "../ground/thread.h"
#include "current.h"

CUresult client_context_push(CUcontext handle)
{
	struct client_thread *thread = client_thread();

	if (thread->depth == CLIENT_CONTEXT_STACK)
		return CUDA_ERROR_INVALID_VALUE;
	thread->contexts[thread->depth++] = handle;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	if (!ctx || !client_context_get(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	return client_context_push(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	CUresult result = client_enter_any();
	struct client_thread *thread;

	if (result != CUDA_SUCCESS)
		return result;
	thread = client_thread();
	if (!thread->depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	thread->depth--;
	if (pctx)
		*pctx = thread->contexts[thread->depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	CUresult result = client_enter_any();
	struct client_thread *thread;

	if (result != CUDA_SUCCESS)
		return result;
	if (ctx && !client_context_get(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	thread = client_thread();
	if (!ctx) {
		if (thread->depth)
			thread->depth--;
		return CUDA_SUCCESS;
	}
	if (!thread->depth)
		thread->depth = 1;
	thread->contexts[thread->depth - 1] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	CUresult result = client_enter_any();
	const struct client_thread *thread;

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	thread = client_thread();
	*pctx = thread->depth ? thread->contexts[thread->depth - 1] : NULL;
	return CUDA_SUCCESS;
}
