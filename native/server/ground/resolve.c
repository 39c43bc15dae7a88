/* What the client's handles stand for. */
#include "hold.h"
#include "resolve.h"

#include <stdlib.h>

CUresult server_context_enter(struct server_thread *thread, struct server_context *context)
{
	struct server *server = thread->server;
	uint64_t epoch = atomic_load(&server->context_epoch);
	CUresult result;

	if (thread->current == context && thread->epoch == epoch)
		return CUDA_SUCCESS;
	result = server->driver.cuCtxSetCurrent(context->real);
	if (result == CUDA_SUCCESS) {
		thread->current = context;
		thread->epoch = epoch;
	}
	return result;
}

CUresult server_resolve_context(struct server_call *call, uint64_t handle, CUcontext *context)
{
	struct server_context *found = server_find(call, HANDLE_CONTEXT, handle);

	if (!found)
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = found->real;
	return CUDA_SUCCESS;
}

/* ---- streams that the legacy one waits for ----
 *
 * NVIDIA's driver, asked whether a context's legacy stream has come to its end, says nothing of the others for which it
 * would wait: so it seems by what hung there (decision 28). */

void server_blocking_add(struct server_context *context, CUstream stream)
{
	context = context->base;
	pthread_mutex_lock(&context->lock);
	if (context->blocking_count < SERVER_BLOCKING)
		context->blocking[context->blocking_count++] = stream;
	else
		context->blocking_many = true;
	pthread_mutex_unlock(&context->lock);
}

void server_blocking_remove(struct server_context *context, CUstream stream)
{
	unsigned at = 0;

	context = context->base;
	pthread_mutex_lock(&context->lock);
	while (at < context->blocking_count && context->blocking[at] != stream)
		at++;
	if (at < context->blocking_count)
		context->blocking[at] = context->blocking[--context->blocking_count];
	pthread_mutex_unlock(&context->lock);
}

/* ---- streams and events ---- */

static struct server_lane_stream *lane_find(const struct server_context *context, uint16_t lane)
{
	struct server_lane_stream *found = context->lanes;

	while (found && found->lane != lane)
		found = found->next;
	return found;
}

/* The stream that stands for CUDA's per-thread default stream of a lane: a
 * blocking stream, which is what that stream is. */
static CUresult lane_stream(struct server_call *call, CUstream *stream)
{
	struct server_lane_stream *found, *made = NULL;
	struct server_context *context = call->context;
	CUresult result = CUDA_SUCCESS;

	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	for (;;) {
		pthread_mutex_lock(&context->lock);
		found = lane_find(context, call->header.lane);
		if (!found && made) {
			made->lane = call->header.lane;
			made->next = context->lanes;
			context->lanes = found = made;
			made = NULL;
		}
		if (found && call->passed)
			result = server_hold(call, found->stream);
		if (found && result == CUDA_SUCCESS)
			*stream = found->stream;
		pthread_mutex_unlock(&context->lock);
		if (found)
			break;
		made = calloc(1, sizeof(*made));
		result = made ? call->driver->cuStreamCreate(&made->stream, CU_STREAM_DEFAULT)
			      : CUDA_ERROR_OUT_OF_MEMORY;
		if (result != CUDA_SUCCESS) {
			free(made);
			return result;
		}
		server_blocking_add(context, made->stream);
	}
	/* Threads that share a lane may both have made one. */
	if (made) {
		server_blocking_remove(context, made->stream);
		call->driver->cuStreamDestroy_v2(made->stream);
		free(made);
	}
	return result;
}

CUresult server_resolve_stream(struct server_call *call, uint64_t handle, CUstream *stream)
{
	if (handle == (uint64_t)(uintptr_t)CU_STREAM_LEGACY) {
		*stream = NULL;
		return CUDA_SUCCESS;
	}
	if (handle == (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD)
		return lane_stream(call, stream);
	return server_find_placed(call, HANDLE_STREAM, handle, (void **)stream);
}

CUresult server_resolve_event(struct server_call *call, uint64_t handle, CUevent *event)
{
	return server_find_placed(call, HANDLE_EVENT, handle, (void **)event);
}

/* ---- functions ----
 *
 * A bit that no address has tells a library's kernel from a module's function: NVIDIA's driver looks into
 * what it is given, and does not look which of the two it is. */
#define KERNEL_MARK (1ull << 63)

void *server_kernel_marked(CUkernel kernel)
{
	return (void *)((uintptr_t)kernel | KERNEL_MARK);
}

CUresult server_resolve_function(struct server_call *call, uint64_t handle, CUfunction *function)
{
	void *found = handle_get(&call->server->functions, HANDLE_FUNCTION, handle);

	*function = (CUfunction)((uintptr_t)found & ~KERNEL_MARK);
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

bool server_is_kernel(struct server_call *call, uint64_t handle)
{
	void *found = handle_get(&call->server->functions, HANDLE_FUNCTION, handle);

	return (uintptr_t)found & KERNEL_MARK;
}

CUresult server_resolve_function_here(struct server_call *call, uint64_t handle, CUfunction *function)
{
	CUresult result = server_resolve_function(call, handle, function);

	if (result == CUDA_SUCCESS && server_is_kernel(call, handle) && call->driver->cuKernelGetFunction)
		result = call->driver->cuKernelGetFunction(function, (CUkernel)*function);
	return result;
}
