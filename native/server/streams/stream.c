/* Streams, those of the client's threads among them, and events. */
#include "../ground/hold.h"
#include "../ground/lead.h"
#include "../ground/primary.h"
#include "../ground/resolve.h"
#include "capture.h"
#include "stream.h"

#include <stdlib.h>

CUresult serve_stream_create(struct server_call *call)
{
	const struct wire_stream_create *request = call->request;
	CUstream stream;
	CUresult result;

	if (request->priority && call->driver->cuStreamCreateWithPriority)
		result = call->driver->cuStreamCreateWithPriority(&stream, request->flags,
								  request->priority);
	else
		result = call->driver->cuStreamCreate(&stream, request->flags);
	if (result != CUDA_SUCCESS)
		return result;
	result = server_place(call, HANDLE_STREAM, request->stream, stream);
	if (result != CUDA_SUCCESS)
		call->driver->cuStreamDestroy_v2(stream);
	else if (!(request->flags & CU_STREAM_NON_BLOCKING))
		server_blocking_add(call->context, stream);
	return result;
}

CUresult serve_stream_destroy(struct server_call *call)
{
	const struct wire_stream_destroy *request = call->request;
	const struct server_placed *placed = handle_get(&call->server->objects, HANDLE_STREAM, request->stream);
	struct server_context *context = placed ? placed->context : NULL;
	CUstream stream;
	CUresult result = server_unplace(call, HANDLE_STREAM, request->stream, (void **)&stream);

	if (result != CUDA_SUCCESS)
		return result;
	server_blocking_remove(context, stream);
	server_capture_end(call->server, stream);
	server_await_users(call, stream);
	return call->driver->cuStreamDestroy_v2(stream);
}

/* ---- threads of the client ---- */

CUresult serve_lane_end(struct server_call *call)
{
	struct server *server = call->server;
	struct server_lane_stream *ended = NULL, *lane;

	/* All of them before the first is waited for: another thread may lead then. */
	server->capture_modes[call->header.lane] = CU_STREAM_CAPTURE_MODE_GLOBAL;
	for (int i = 0; i < server->device_count; i++) {
		struct server_context *context = server_primary(server, (uint32_t)i);
		struct server_lane_stream **link;

		if (!context)
			continue;
		pthread_mutex_lock(&context->lock);
		for (link = &context->lanes; *link; link = &(*link)->next) {
			if ((*link)->lane == call->header.lane) {
				lane = *link;
				*link = lane->next;
				lane->next = ended;
				lane->context = context;
				ended = lane;
				break;
			}
		}
		pthread_mutex_unlock(&context->lock);
	}
	while ((lane = ended)) {
		ended = lane->next;
		server_capture_end(server, lane->stream);
		call->context = lane->context;
		server_await_users(call, lane->stream);
		/* With its context it is gone by itself. */
		server_blocking_remove(lane->context, lane->stream);
		if (server_hold_context(call, lane->context) == CUDA_SUCCESS &&
		    server_context_enter(call->thread, lane->context) == CUDA_SUCCESS)
			call->driver->cuStreamDestroy_v2(lane->stream);
		free(lane);
	}
	return CUDA_SUCCESS;
}

/* ---- events ---- */

CUresult server_place_event(struct server_call *call, uint64_t handle, CUevent event)
{
	CUresult result = server_place(call, HANDLE_EVENT, handle, event);

	if (result != CUDA_SUCCESS)
		call->driver->cuEventDestroy_v2(event);
	return result;
}

CUresult serve_event_create(struct server_call *call)
{
	const struct wire_event_create *request = call->request;
	CUevent event;
	CUresult result = call->driver->cuEventCreate(&event, request->flags);

	return result == CUDA_SUCCESS ? server_place_event(call, request->event, event) : result;
}

CUresult serve_event_destroy(struct server_call *call)
{
	const struct wire_event_destroy *request = call->request;
	CUevent event;
	CUresult result = server_unplace(call, HANDLE_EVENT, request->event, (void **)&event);

	/* With its context the driver has destroyed it. */
	if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		return result;
	server_await_users(call, event);
	return call->driver->cuEventDestroy_v2(event);
}

CUresult serve_event_record(struct server_call *call)
{
	const struct wire_event_record *request = call->request;
	CUstream stream;
	CUevent event;
	CUresult result = server_resolve_event(call, request->event, &event);

	if (result == CUDA_SUCCESS)
		result = server_resolve_stream(call, request->stream, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!request->flags)
		return call->driver->cuEventRecord(event, stream);
	if (!call->driver->cuEventRecordWithFlags)
		return CUDA_ERROR_NOT_SUPPORTED;
	return call->driver->cuEventRecordWithFlags(event, stream, request->flags);
}
