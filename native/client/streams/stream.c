/* Streams: named here, made on the server by posted messages. */
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../handles/greens.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "stream.h"

#include <stdlib.h>

static uint64_t wire_of(CUstream stream)
{
	return (uint64_t)(uintptr_t)stream;
}

static struct client_stream *stream_get(CUstream stream)
{
	return client_stream_find(wire_of(stream));
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
	struct wire_stream_create request = { .flags = flags };
	struct client_stream *stream;
	CUresult result = client_enter();
	int least, greatest;

	if (result != CUDA_SUCCESS)
		return result;
	if (!phStream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	if (priority) {
		result = cuCtxGetStreamPriorityRange(&least, &greatest);
		if (result != CUDA_SUCCESS)
			return result;
		if (priority > least)
			priority = least;
		if (priority < greatest)
			priority = greatest;
	}
	stream = calloc(1, sizeof(*stream));
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->context = client_context_current();
	stream->ends = atomic_load(&stream->context->ends);
	stream->green = client_green_take();
	stream->flags = flags;
	stream->priority = priority;
	stream->id = atomic_fetch_add(&farbus_client.next_id, 1) + 1;
	if (handle_open(&farbus_client.handles, HANDLE_STREAM, stream, &request.stream)) {
		client_green_release(stream->green);
		free(stream);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	stream->handle = (CUstream)(uintptr_t)request.stream;
	request.priority = priority;
	result = client_post(WIRE_OP_STREAM_CREATE, &request, sizeof(request), NULL, 0);
	if (result != CUDA_SUCCESS) {
		handle_close(&farbus_client.handles, HANDLE_STREAM, request.stream);
		client_green_release(stream->green);
		free(stream);
		return result;
	}
	*phStream = stream->handle;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
	return cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
	const struct wire_stream_destroy request = { .stream = wire_of(hStream) };
	struct client_stream *stream;
	CUresult result = client_enter_any(), sticky;

	if (result != CUDA_SUCCESS)
		return result;
	stream = stream_get(hStream);
	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	/* Its context's error is told, and it is destroyed all the same. */
	sticky = atomic_load(&stream->context->sticky);
	/* Posted before the name is free: its next owner's creation comes behind. */
	result = client_post(WIRE_OP_STREAM_DESTROY, &request, sizeof(request), NULL, 0);
	client_capture_leave(request.stream);
	stream = handle_close(&farbus_client.handles, HANDLE_STREAM, request.stream);
	if (stream)
		client_green_release(stream->green);
	free(stream);
	return result == CUDA_SUCCESS ? sticky : result;
}

/* The stream a getter asks about; *stream is NULL for the special ones. */
static CUresult stream_meant(CUstream handle, const struct client_stream **stream)
{
	CUresult result = client_enter_stream(handle);
	uint64_t wire;

	if (result == CUDA_SUCCESS)
		result = client_stream_wire(handle, &wire);
	if (result == CUDA_SUCCESS)
		*stream = stream_get(handle);
	return result;
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
	const struct client_stream *stream;
	CUresult result = stream_meant(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = stream ? stream->flags : 0;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
	const struct client_stream *stream;
	CUresult result = stream_meant(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = stream ? stream->priority : 0;
	return CUDA_SUCCESS;
}

/* The green context of a stream, and the context that stands for it; of a special stream, that
 * which is current. */
static CUgreenCtx green_of(const struct client_stream *stream, CUcontext *context)
{
	*context = NULL;
	return stream && !stream->green ? NULL
					: client_green_handle(stream ? stream->green : NULL, context);
}

bool client_stream_is_green(uint64_t wire)
{
	CUcontext context;

	return green_of(client_stream_find(wire), &context) != NULL;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
	const struct client_stream *stream;
	CUcontext green;
	CUresult result = stream_meant(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	green_of(stream, &green);
	*pctx = green ? green : stream ? stream->context->handle : client_context_current()->handle;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
	const struct client_stream *stream;
	CUcontext context;
	CUgreenCtx green;
	CUresult result = stream_meant(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	green = green_of(stream, &context);
	if (green && hStream == CU_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_HANDLE;
	if (pGreenCtx)
		*pGreenCtx = green;
	if (!pCtx)
		return CUDA_ERROR_INVALID_VALUE;
	*pCtx = stream ? stream->context->handle : client_context_current()->handle;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
	const struct client_stream *stream;
	CUresult result = stream_meant(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!streamId)
		return CUDA_ERROR_INVALID_VALUE;
	*streamId = stream ? stream->id : client_thread()->per_thread ? 2 : 1;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
	const struct client_stream *stream;
	CUresult result = stream_meant(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = stream ? stream->context->device : client_context_current()->device;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx)
{
	const struct client_stream *stream;
	CUcontext context;
	CUresult result = stream_meant(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!phCtx)
		return CUDA_ERROR_INVALID_VALUE;
	*phCtx = green_of(stream, &context);
	return CUDA_SUCCESS;
}

CUresult client_stream_reach(uint64_t stream)
{
	const struct wire_stream_reach reach = { .stream = stream };
	const struct client_session *session = client_stream_session(stream);

	/* Before 2.5 its own end is what can be waited for. */
	return client_call(client_session_has(session, WIRE_OP_STREAM_REACH) ? WIRE_OP_STREAM_REACH
									     : WIRE_OP_STREAM_SYNCHRONIZE,
			   &reach, sizeof(reach), NULL, 0);
}
