/* Streams and events: named here, made on the server by posted messages. */
#include "client.h"

#include <stdlib.h>

static uint64_t wire_of(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

static struct client_stream *stream_get(CUstream stream)
{
	return handle_get(&farbus_client.handles, HANDLE_STREAM, wire_of(stream));
}

/* CUDA's two special streams travel as themselves; NULL is one of them. */
CUresult client_stream_wire(CUstream stream, uint64_t *wire)
{
	if (!stream)
		stream = client_thread()->per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	if (stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD && !stream_get(stream))
		return CUDA_ERROR_INVALID_HANDLE;
	*wire = wire_of(stream);
	return CUDA_SUCCESS;
}

struct client_context *client_stream_context(uint64_t wire)
{
	const struct client_stream *stream = handle_get(&farbus_client.handles, HANDLE_STREAM, wire);

	return stream ? stream->context : client_context_current();
}

struct client_context *client_event_context(uint64_t wire)
{
	const struct client_event *event = handle_get(&farbus_client.handles, HANDLE_EVENT, wire);

	return event ? event->context : NULL;
}

CUresult client_event_wire(CUevent event, uint64_t *wire)
{
	if (!handle_get(&farbus_client.handles, HANDLE_EVENT, wire_of(event)))
		return CUDA_ERROR_INVALID_HANDLE;
	*wire = wire_of(event);
	return CUDA_SUCCESS;
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
	stream->flags = flags;
	stream->priority = priority;
	stream->id = atomic_fetch_add(&farbus_client.next_id, 1) + 1;
	if (handle_open(&farbus_client.handles, HANDLE_STREAM, stream, &request.stream)) {
		free(stream);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	stream->handle = (CUstream)(uintptr_t)request.stream;
	request.priority = priority;
	result = client_post(WIRE_OP_STREAM_CREATE, &request, sizeof(request), NULL, 0);
	if (result != CUDA_SUCCESS) {
		handle_close(&farbus_client.handles, HANDLE_STREAM, request.stream);
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
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!stream_get(hStream))
		return CUDA_ERROR_INVALID_HANDLE;
	/* Posted before the name is free: its next owner's creation comes behind. */
	result = client_post(WIRE_OP_STREAM_DESTROY, &request, sizeof(request), NULL, 0);
	stream = handle_close(&farbus_client.handles, HANDLE_STREAM, request.stream);
	free(stream);
	return result;
}

/* The stream a getter asks about; *stream is NULL for the special ones. */
static CUresult stream_meant(CUstream handle, const struct client_stream **stream)
{
	CUresult result = client_enter();
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

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
	const struct client_stream *stream;
	CUresult result = stream_meant(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = stream ? stream->context->handle : client_context_current()->handle;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
	if (pGreenCtx)
		*pGreenCtx = NULL;
	return cuStreamGetCtx(hStream, pCtx);
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
	CUresult result = stream_meant(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!phCtx)
		return CUDA_ERROR_INVALID_VALUE;
	/* No stream belongs to one: green contexts are not made here. */
	*phCtx = NULL;
	return CUDA_SUCCESS;
}

/* ---- events ---- */

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
	const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
	struct wire_event_create request = { .flags = Flags };
	struct client_event *event;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!phEvent || Flags & ~known)
		return CUDA_ERROR_INVALID_VALUE;
	if (Flags & CU_EVENT_INTERPROCESS && !(Flags & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_VALUE;
	event = calloc(1, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->context = client_context_current();
	event->flags = Flags;
	if (handle_open(&farbus_client.handles, HANDLE_EVENT, event, &request.event)) {
		free(event);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	event->handle = (CUevent)(uintptr_t)request.event;
	result = client_post(WIRE_OP_EVENT_CREATE, &request, sizeof(request), NULL, 0);
	if (result != CUDA_SUCCESS) {
		handle_close(&farbus_client.handles, HANDLE_EVENT, request.event);
		free(event);
		return result;
	}
	*phEvent = event->handle;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
	const struct wire_event_destroy request = { .event = wire_of(hEvent) };
	CUresult result = client_enter_any();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle_get(&farbus_client.handles, HANDLE_EVENT, request.event))
		return CUDA_ERROR_INVALID_HANDLE;
	result = client_post(WIRE_OP_EVENT_DESTROY, &request, sizeof(request), NULL, 0);
	free(handle_close(&farbus_client.handles, HANDLE_EVENT, request.event));
	return result;
}
