/* Stream capture.
 *
 * CUDA ties a capture that is not relaxed to the thread that began it, and forbids some
 * calls of that thread, or of all, while it goes on.  Here any thread may serve a lane, so
 * every capture is relaxed for the driver, and what its mode forbids is refused here. */
#include "../ground/hold.h"
#include "../ground/named.h"
#include "../ground/resolve.h"
#include "capture.h"

#include <stdlib.h>
#include <string.h>

CUresult serve_capture_mode(struct server_call *call)
{
	const struct wire_capture_mode *request = call->request;

	if (request->mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return SERVER_MALFORMED;
	call->server->capture_modes[call->header.lane] = (uint8_t)request->mode;
	return CUDA_SUCCESS;
}

/* Note a capture that has begun. */
static void capture_note(struct server_call *call, CUstream stream, uint32_t mode)
{
	struct server *server = call->server;
	struct server_capture *capture = calloc(1, sizeof(*capture));

	if (!capture)
		return;
	capture->stream = stream;
	if (!call->driver->cuStreamGetCtx ||
	    call->driver->cuStreamGetCtx(stream, &capture->context) != CUDA_SUCCESS)
		capture->context = call->context->real;
	capture->lane = call->header.lane;
	capture->mode = mode;
	pthread_mutex_lock(&server->lock);
	capture->number = ++server->captures_begun;
	capture->next = server->captures;
	server->captures = capture;
	pthread_mutex_unlock(&server->lock);
	atomic_fetch_add(&server->capture_count, 1);
}

CUresult serve_capture_begin(struct server_call *call)
{
	const struct wire_capture_begin *request = call->request;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!call->driver->cuStreamBeginCapture_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (request->mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	result = call->driver->cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	if (result == CUDA_SUCCESS)
		capture_note(call, stream, request->mode);
	return result;
}

void server_capture_end(struct server *server, CUstream stream)
{
	struct server_capture **link, *capture;

	if (!atomic_load(&server->capture_count))
		return;
	pthread_mutex_lock(&server->lock);
	for (link = &server->captures; *link && (*link)->stream != stream; link = &(*link)->next)
		;
	capture = *link;
	if (capture)
		*link = capture->next;
	pthread_mutex_unlock(&server->lock);
	if (capture) {
		free(capture);
		atomic_fetch_sub(&server->capture_count, 1);
	}
}

void server_captures_forget(struct server *server, CUcontext context)
{
	struct server_capture **link = &server->captures, *capture;

	pthread_mutex_lock(&server->lock);
	while ((capture = *link)) {
		if (capture->context != context) {
			link = &capture->next;
			continue;
		}
		*link = capture->next;
		free(capture);
		atomic_fetch_sub(&server->capture_count, 1);
	}
	pthread_mutex_unlock(&server->lock);
}

CUgraph server_capture_graph(const struct server_driver *driver, CUstream stream)
{
	CUstreamCaptureStatus status;
	CUgraph graph = NULL;
	cuuint64_t id;

	if (!driver->cuStreamGetCaptureInfo_v2 ||
	    driver->cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, NULL, NULL) !=
		    CUDA_SUCCESS ||
	    status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return NULL;
	return graph;
}

/* Operations that CUDA calls potentially unsafe. */
static bool unsafe(enum wire_op op)
{
	switch (op) {
	case WIRE_OP_MEMORY_ALLOC:
	case WIRE_OP_MEMORY_ALLOC_PITCH:
	case WIRE_OP_MEMORY_FREE:
	case WIRE_OP_EVENT_QUERY:
	case WIRE_OP_EVENT_SYNCHRONIZE:
	case WIRE_OP_CONTEXT_SYNCHRONIZE:
		return true;
	default:
		return false;
	}
}

static bool forbids(const struct server_capture *capture, uint16_t lane, uint8_t mode)
{
	return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	       (capture->lane == lane || (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
					  mode == CU_STREAM_CAPTURE_MODE_GLOBAL));
}

/* A stream whose capture may keep the call from being served, held for it: of those behind *begun, which becomes its
 * number.  NULL: there is none, or with *result no memory. */
static CUstream forbidding(struct server_call *call, uint8_t mode, uint64_t *begun, CUresult *result)
{
	struct server *server = call->server;
	struct server_capture *found = NULL;
	CUstream stream = NULL;

	pthread_mutex_lock(&server->lock);
	for (struct server_capture *capture = server->captures; capture; capture = capture->next)
		if (capture->number > *begun && forbids(capture, call->header.lane, mode) &&
		    (!found || capture->number < found->number))
			found = capture;
	/* Whoever destroys it takes it out of this list first. */
	if (found && call->passed)
		*result = server_hold(call, found->stream);
	if (found && *result == CUDA_SUCCESS) {
		stream = found->stream;
		*begun = found->number;
	}
	pthread_mutex_unlock(&server->lock);
	return stream;
}

CUresult server_capture_permit(struct server_call *call)
{
	uint8_t mode = call->server->capture_modes[call->header.lane];
	CUresult result = CUDA_SUCCESS, refused = CUDA_SUCCESS;
	CUstreamCaptureStatus status;
	uint64_t begun = 0;
	CUstream stream;

	if (!unsafe((enum wire_op)call->header.opcode) || mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	while ((stream = forbidding(call, mode, &begun, &result))) {
		/* One that is lost already forbids nothing. */
		if (call->driver->cuStreamIsCapturing &&
		    call->driver->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
		    status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
			continue;
		/* It is lost now, as it would be: asking a captured stream whether it is done is what the driver itself
		 * ends it for. */
		call->driver->cuStreamQuery(stream);
		refused = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result != CUDA_SUCCESS ? result : refused;
}

/* Ended by the client's thread that began it, unless it is relaxed. */
CUresult serve_capture_end(struct server_call *call)
{
	const struct wire_capture_end *request = call->request;
	struct wire_capture_end_reply *reply = call->reply;
	struct server *server = call->server;
	bool foreign = false;
	CUgraph graph = NULL, before;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!call->driver->cuStreamEndCapture)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&server->lock);
	for (struct server_capture *capture = server->captures; capture; capture = capture->next)
		foreign = foreign || (capture->stream == stream &&
				      capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
				      capture->lane != call->header.lane);
	pthread_mutex_unlock(&server->lock);
	if (foreign)
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	before = server_capture_graph(call->driver, stream);
	result = call->driver->cuStreamEndCapture(stream, &graph);
	if (result != CUDA_ERROR_ILLEGAL_STATE)
		server_capture_end(server, stream);
	if (result != CUDA_SUCCESS && before)
		server_name_drop(server, SERVER_CUgraph, (uint64_t)(uintptr_t)before);
	if (result == CUDA_SUCCESS && graph)
		result = server_name(call, SERVER_CUgraph, (uint64_t)(uintptr_t)graph, 0, false,
				     &reply->graph);
	return result;
}

CUresult serve_capture_begin_to_graph(struct server_call *call)
{
	const struct wire_capture_begin_to_graph *request = call->request;
	CUgraphNode *nodes = NULL;
	CUgraphEdgeData *edges = NULL;
	CUgraph graph = server_object(call, SERVER_CUgraph, request->graph);
	uint32_t count = request->count;
	CUstream stream;
	CUresult result = server_resolve_stream(call, request->stream, &stream);
	size_t each = sizeof(uint64_t) + (request->has_edges ? sizeof(CUgraphEdgeData) : 0);

	if (request->mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (call->tail_bytes % each || call->tail_bytes / each != count)
		return SERVER_MALFORMED;
	if (result != CUDA_SUCCESS)
		return result;
	if (!call->driver->cuStreamBeginCaptureToGraph)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	nodes = calloc(count + 1, sizeof(*nodes));
	edges = calloc(count + 1, sizeof(*edges));
	if (!nodes || !edges)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	for (uint32_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		uint64_t name;

		memcpy(&name, call->tail + i * sizeof(name), sizeof(name));
		nodes[i] = server_object(call, SERVER_CUgraphNode, name);
		if (!nodes[i])
			result = CUDA_ERROR_INVALID_VALUE;
		if (request->has_edges)
			memcpy(&edges[i], call->tail + count * sizeof(name) + i * sizeof(edges[i]),
			       sizeof(edges[i]));
	}
	if (result == CUDA_SUCCESS)
		result = call->driver->cuStreamBeginCaptureToGraph(
			stream, graph, count ? nodes : NULL,
			request->has_edges ? edges : NULL, count, CU_STREAM_CAPTURE_MODE_RELAXED);
	if (result == CUDA_SUCCESS)
		capture_note(call, stream, request->mode);
	free(nodes);
	free(edges);
	return result;
}

/* Most nodes that a capture may be behind for the client to be told. */
#define BEHIND_LIMIT 16384u

CUresult serve_capture_info(struct server_call *call)
{
	const struct wire_capture_info *request = call->request;
	struct wire_capture_info_reply *reply = call->reply;
	const struct server_driver *driver = call->driver;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	const CUgraphEdgeData *edges = NULL;
	const CUgraphNode *nodes = NULL;
	CUgraph graph = NULL;
	cuuint64_t id = 0;
	size_t count = 0;
	CUstream stream;
	uint64_t *names;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (driver->cuStreamGetCaptureInfo_v3)
		result = driver->cuStreamGetCaptureInfo_v3(stream, &status, &id, &graph, &nodes,
							   &edges, &count);
	else if (driver->cuStreamGetCaptureInfo_v2)
		result = driver->cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &nodes,
							   &count);
	else
		result = CUDA_ERROR_NOT_SUPPORTED;
	if (result != CUDA_SUCCESS)
		return result;
	reply->status = (uint32_t)status;
	if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return CUDA_SUCCESS;
	if (count > BEHIND_LIMIT)
		return CUDA_ERROR_NOT_SUPPORTED;
	reply->id = id;
	reply->count = (uint32_t)count;
	reply->has_edges = edges != NULL;
	call->reply_tail_bytes = count * (sizeof(*names) + (edges ? sizeof(*edges) : 0));
	call->reply_tail = malloc(call->reply_tail_bytes + 1);
	if (!call->reply_tail)
		return CUDA_ERROR_OUT_OF_MEMORY;
	names = (uint64_t *)(void *)call->reply_tail;
	result = server_name(call, SERVER_CUgraph, (uint64_t)(uintptr_t)graph, 0, false,
			     &reply->graph);
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = server_name(call, SERVER_CUgraphNode,
				     (uint64_t)(uintptr_t)nodes[i], reply->graph, false, &names[i]);
	if (edges && count)
		memcpy(names + count, edges, count * sizeof(*edges));
	return result;
}
