/* Stream capture: how it begins, ends, and what a program asks of it. */
#include "../../generated/client_raw.h"
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "capture.h"

#include <stdlib.h>
#include <string.h>

static CUresult stream_enter(CUstream handle, uint64_t *stream)
{
	CUresult result = client_enter_stream(handle);

	return result == CUDA_SUCCESS ? client_stream_wire(handle, stream) : result;
}

/* With these a capture is over; after others it may go on, or another one may. */
static bool ends_capture(CUresult result)
{
	return result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
	       result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
	struct wire_capture_begin fixed = { .mode = (uint32_t)mode };
	const struct client_request request = {
		.op = WIRE_OP_CAPTURE_BEGIN,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	CUresult result = stream_enter(hStream, &fixed.stream);

	return result == CUDA_SUCCESS ? client_capture_begin(&request, fixed.stream) : result;
}

CUresult cuStreamBeginCapture(CUstream hStream)
{
	return cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* Most nodes that a capture can begin behind. */
#define BEHIND_LIMIT 4096u

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
				     const CUgraphNode *dependencies,
				     const CUgraphEdgeData *dependencyData, size_t numDependencies,
				     CUstreamCaptureMode mode)
{
	size_t nodes = numDependencies * sizeof(CUgraphNode);
	size_t edges = dependencyData ? numDependencies * sizeof(CUgraphEdgeData) : 0;
	struct client_session *session;
	struct wire_capture_begin_to_graph fixed = {
		.graph = client_named_wire(hGraph, &session),
		.mode = (uint32_t)mode,
		.count = (uint32_t)numDependencies,
		.has_edges = dependencyData != NULL,
	};
	struct client_request request = {
		.op = WIRE_OP_CAPTURE_BEGIN_TO_GRAPH,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
		.tail_bytes = nodes + edges,
	};
	CUresult result = stream_enter(hStream, &fixed.stream);
	uint8_t *tail;

	if (result != CUDA_SUCCESS)
		return result;
	if (numDependencies > BEHIND_LIMIT || (numDependencies && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	tail = malloc(nodes + edges + 1);
	if (!tail)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (session != client_stream_session(fixed.stream)) {
		client_message("capturing a stream at %s into a graph at %s is not supported over "
			       "remoting", client_stream_session(fixed.stream)->peer, session->peer);
		free(tail);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	for (size_t i = 0; i < numDependencies; i++) {
		struct client_session *owner;
		uint64_t node = client_named_wire(dependencies[i], &owner);

		memcpy(tail + i * sizeof(node), &node, sizeof(node));
	}
	if (edges)
		memcpy(tail + nodes, dependencyData, edges);
	request.tail = tail;
	result = client_capture_begin(&request, fixed.stream);
	free(tail);
	return result;
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
	struct wire_capture_end fixed = { 0 };
	const struct client_request request = {
		.op = WIRE_OP_CAPTURE_END,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct wire_capture_end_reply reply = { 0 };
	struct client_wait wait = {
		.reply = &reply,
		.reply_bytes = sizeof(reply),
		.result = CUDA_ERROR_DEVICE_UNAVAILABLE,
	};
	CUresult result = stream_enter(hStream, &fixed.stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = client_call_wide(&request, &wait);
	/* Whatever it tells of what was posted before. */
	if (ends_capture(wait.result))
		client_capture_leave(fixed.stream);
	/* A program that captured into a graph of its own need not be told it. */
	if (phGraph)
		*phGraph = result == CUDA_SUCCESS ? client_graph_take(fixed.stream, reply.graph) : NULL;
	return result;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
	struct wire_capture_info_reply reply;
	size_t tail_bytes;
	uint64_t stream;
	uint8_t *tail;
	CUresult result = stream_enter(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!captureStatus)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_capture_info(stream, &reply, &tail, &tail_bytes);
	free(tail);
	if (result == CUDA_SUCCESS)
		*captureStatus = (CUstreamCaptureStatus)reply.status;
	return result;
}

/* What a stream's capture is behind, for as long as the thread is there and does not ask again. */
static __thread uint8_t *behind;

void client_capture_thread_ends(void)
{
	free(behind);
	behind = NULL;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
				   cuuint64_t *id_out, CUgraph *graph_out,
				   const CUgraphNode **dependencies_out,
				   const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out)
{
	struct wire_capture_info_reply reply;
	const uint8_t *edges;
	size_t tail_bytes;
	uint64_t stream;
	uint8_t *tail;
	CUresult result = stream_enter(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!captureStatus_out)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_capture_info(stream, &reply, &tail, &tail_bytes);
	if (result == CUDA_SUCCESS &&
	    tail_bytes != reply.count * (sizeof(CUgraphNode) +
					 (reply.has_edges ? sizeof(CUgraphEdgeData) : 0)))
		result = CUDA_ERROR_UNKNOWN;
	if (result != CUDA_SUCCESS) {
		free(tail);
		return result;
	}
	*captureStatus_out = (CUstreamCaptureStatus)reply.status;
	if (reply.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
		free(tail);
		return CUDA_SUCCESS;
	}
	edges = reply.has_edges ? tail + reply.count * sizeof(CUgraphNode) : NULL;
	/* Without a place for them, edges that say anything are an error. */
	for (size_t i = 0; edges && dependencies_out && !edgeData_out &&
			   i < reply.count * sizeof(CUgraphEdgeData); i++) {
		if (edges[i]) {
			free(tail);
			return CUDA_ERROR_LOSSY_QUERY;
		}
	}
	if (id_out)
		*id_out = reply.id;
	if (graph_out)
		*graph_out = client_graph_take(stream, reply.graph);
	for (size_t i = 0; i < reply.count; i++) {
		uint64_t node;

		memcpy(&node, tail + i * sizeof(node), sizeof(node));
		node = client_named_take(client_stream_session(stream), node);
		memcpy(tail + i * sizeof(node), &node, sizeof(node));
	}
	free(behind);
	behind = tail;
	if (dependencies_out)
		*dependencies_out = (const CUgraphNode *)(const void *)tail;
	if (edgeData_out)
		*edgeData_out = (const CUgraphEdgeData *)(const void *)edges;
	if (numDependencies_out)
		*numDependencies_out = reply.count;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
				   cuuint64_t *id_out, CUgraph *graph_out,
				   const CUgraphNode **dependencies_out, size_t *numDependencies_out)
{
	return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out,
					 dependencies_out, NULL, numDependencies_out);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
				cuuint64_t *id_out)
{
	return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, NULL, NULL, NULL, NULL);
}

/* A stream that is not captured has nothing behind it, whatever nodes are named. */
static CUresult behind_permit(CUstream hStream)
{
	uint64_t stream;
	CUresult result = stream_enter(hStream, &stream);

	if (result == CUDA_SUCCESS && !client_stream_captured(stream))
		result = CUDA_ERROR_ILLEGAL_STATE;
	return result;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
					   size_t numDependencies, unsigned int flags)
{
	CUresult result = behind_permit(hStream);

	return result == CUDA_SUCCESS
		       ? client_raw_cuStreamUpdateCaptureDependencies(hStream, dependencies,
								      numDependencies, flags)
		       : result;
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
					      const CUgraphEdgeData *dependencyData,
					      size_t numDependencies, unsigned int flags)
{
	CUresult result = behind_permit(hStream);

	return result == CUDA_SUCCESS
		       ? client_raw_cuStreamUpdateCaptureDependencies_v2(
				 hStream, dependencies, dependencyData, numDependencies, flags)
		       : result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUresult result = client_enter_any();
	struct wire_capture_mode request = { 0 };
	struct client_thread *thread;
	CUstreamCaptureMode before;

	if (result != CUDA_SUCCESS)
		return result;
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread = client_thread();
	before = thread->capture_mode;
	request.mode = (uint32_t)*mode;
	/* It is the thread's, whichever server's streams are captured. */
	for (unsigned i = 0; *mode != before && i < farbus_client.session_count; i++) {
		const struct client_route route = { .session = &farbus_client.sessions[i] };
		const struct client_request post = {
			.op = WIRE_OP_CAPTURE_MODE,
			.fixed = &request,
			.fixed_bytes = sizeof(request),
		};

		if (!atomic_load(&route.session->dead))
			result = client_post_to(&route, &post);
	}
	if (result != CUDA_SUCCESS)
		return result;
	thread->capture_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}
