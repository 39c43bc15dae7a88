/* Streams as handles: what they name, and in which context they work. */
#include "../ground/thread.h"
#include "greens.h"
#include "streams.h"

static uint64_t wire_of(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

struct client_stream *client_stream_find(uint64_t wire)
{
	struct client_stream *stream = handle_get(&farbus_client.handles, HANDLE_STREAM, wire);

	return stream && stream->ends == atomic_load(&stream->context->ends) ? stream : NULL;
}

static struct client_stream *stream_get(CUstream stream)
{
	return client_stream_find(wire_of(stream));
}

/* CUDA's two special streams travel as themselves; NULL is one of them.  *found is NULL for them. */
static CUresult stream_find(CUstream stream, const struct client_stream **found, uint64_t *wire)
{
	*found = NULL;
	if (!stream)
		stream = client_thread()->per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	if (stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD) {
		*found = stream_get(stream);
		if (!*found)
			return CUDA_ERROR_INVALID_HANDLE;
		if ((*found)->green && client_green_has_ended((*found)->green))
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	*wire = wire_of(stream);
	return CUDA_SUCCESS;
}

CUresult client_stream_wire(CUstream stream, uint64_t *wire)
{
	const struct client_stream *found;

	return stream_find(stream, &found, wire);
}

CUresult client_enter_stream(CUstream stream)
{
	CUresult result = client_enter();

	if (result == CUDA_ERROR_INVALID_CONTEXT && stream_get(stream))
		return client_enter_any();
	/* Where both have ended, it is the stream that is told. */
	return result == CUDA_ERROR_CONTEXT_IS_DESTROYED && stream > CU_STREAM_PER_THREAD && !stream_get(stream) ?
		       CUDA_ERROR_INVALID_HANDLE : result;
}

CUresult client_stream_enter(CUstream stream, uint64_t *wire)
{
	const struct client_stream *found = NULL;
	CUresult result = client_enter_stream(stream);

	if (result == CUDA_SUCCESS)
		result = stream_find(stream, &found, wire);
	return result == CUDA_SUCCESS && found ? atomic_load(&found->context->sticky) : result;
}

struct client_context *client_stream_context(uint64_t wire)
{
	const struct client_stream *stream = NULL;

	if (wire > wire_of(CU_STREAM_PER_THREAD))
		stream = client_stream_find(wire);
	return stream ? stream->context : client_context_current();
}

bool client_wait_spins(CUcontext handle, enum wire_op op, const void *fixed)
{
	const unsigned sleeps = CU_CTX_SCHED_YIELD | CU_CTX_SCHED_BLOCKING_SYNC;
	const struct client_context *context = client_context_get(handle);
	const struct wire_event_synchronize *request = fixed;
	const struct client_event *event = NULL;

	if (op == WIRE_OP_EVENT_SYNCHRONIZE)
		event = handle_get(&farbus_client.handles, HANDLE_EVENT, request->event);
	return !(context && context->flags & sleeps) && !(event && event->flags & CU_EVENT_BLOCKING_SYNC);
}
