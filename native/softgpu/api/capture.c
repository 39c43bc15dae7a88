#include "../driver/capture.h"

#include "../driver/graph/graph.h"
#include "../driver/handle.h"
#include "../driver/stream.h"

#include <string.h>

/* A stream that can begin; on success the lock is held. */
static CUresult enter_begin(CUstream handle, CUstreamCaptureMode mode, struct CUstream_st **stream)
{
	CUresult result = driver_stream_of(handle, stream);

	if (!result)
		result = driver_context_state((*stream)->context);
	if (result)
		return result;
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if ((*stream)->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	driver_graph_lock();
	if (!(*stream)->capture)
		return CUDA_SUCCESS;
	driver_graph_unlock();
	return CUDA_ERROR_ILLEGAL_STATE;
}

DRIVER_EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = enter_begin(handle, mode, &stream);

	if (result)
		return result;
	result = driver_capture_begin(stream, NULL, NULL, mode);
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph,
						   const CUgraphNode *dependencies,
						   const CUgraphEdgeData *data, size_t count,
						   CUstreamCaptureMode mode)
{
	DRIVER_CALL;
	struct graph_edges start = { 0 };
	struct CUstream_st *stream;
	CUresult result = enter_begin(handle, mode, &stream);

	if (result)
		return result;
	if (!driver_handle_is(graph, DRIVER_KIND_GRAPH))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		result = driver_graph_check_edges(graph, dependencies, data, count);
	for (size_t i = 0; i < count && !result; i++) {
		if (!graph_edges_add(&start, dependencies[i], data ? &data[i] : NULL))
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!result)
		result = driver_capture_begin(stream, graph, &start, mode);
	graph_edges_clear(&start);
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUgraph made = NULL;
	bool is_new;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	driver_graph_lock();
	is_new = stream->capture && stream->capture->owns_graph;
	result = driver_capture_end(stream, &made);
	/* A program that gave the graph itself need not be told it; what nobody is told, nobody can use. */
	if (!graph && made && is_new)
		driver_graph_free(made);
	driver_graph_unlock();
	if (graph)
		*graph = made;
	return result;
}

/* Is there data that a caller who has no room for it would miss? */
static bool has_data(const struct graph_edges *edges)
{
	static const CUgraphEdgeData zeros;

	for (size_t i = 0; i < edges->count; i++) {
		if (memcmp(&edges->data[i], &zeros, sizeof zeros))
			return true;
	}
	return false;
}

DRIVER_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status,
						 cuuint64_t *id, CUgraph *graph,
						 const CUgraphNode **dependencies,
						 const CUgraphEdgeData **data, size_t *count)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (!status || (data && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	driver_graph_lock();
	result = driver_capture_status(stream, status);
	if (!result && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
		if (id)
			*id = stream->capture->id;
		if (graph)
			*graph = stream->capture->graph;
		if (dependencies)
			*dependencies = stream->frontier.nodes;
		if (data)
			*data = stream->frontier.data;
		else if (dependencies && has_data(&stream->frontier))
			result = CUDA_ERROR_LOSSY_QUERY;
		if (count)
			*count = stream->frontier.count;
	}
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status,
						 cuuint64_t *id, CUgraph *graph,
						 const CUgraphNode **dependencies, size_t *count)
{
	return cuStreamGetCaptureInfo_v3(handle, status, id, graph, dependencies, NULL, count);
}

DRIVER_EXPORT CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status,
					      cuuint64_t *id)
{
	return cuStreamGetCaptureInfo_v3(handle, status, id, NULL, NULL, NULL, NULL);
}

DRIVER_EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
	return cuStreamGetCaptureInfo_v3(handle, status, NULL, NULL, NULL, NULL, NULL);
}

DRIVER_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle,
							    CUgraphNode *dependencies,
							    const CUgraphEdgeData *data,
							    size_t count, unsigned int flags)
{
	DRIVER_CALL;
	struct graph_edges now = { 0 };
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (result)
		return result;
	if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
		return CUDA_ERROR_INVALID_VALUE;
	driver_graph_lock();
	if (!stream->capture)
		result = CUDA_ERROR_ILLEGAL_STATE;
	else if (stream->capture->invalidated)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else
		result = driver_graph_check_edges(stream->capture->graph, dependencies, data, count);
	if (!result && flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES &&
	    !graph_edges_unite(&now, &stream->frontier))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < count && !result; i++) {
		if (graph_edges_find(&now, dependencies[i]) == now.count &&
		    !graph_edges_add(&now, dependencies[i], data ? &data[i] : NULL))
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result) {
		graph_edges_clear(&now);
	} else {
		graph_edges_clear(&stream->frontier);
		stream->frontier = now;
	}
	driver_graph_unlock();
	return result;
}

DRIVER_EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies,
							 size_t count, unsigned int flags)
{
	return cuStreamUpdateCaptureDependencies_v2(handle, dependencies, NULL, count, flags);
}

/* The form of CUDA 10.0 had no mode. */
DRIVER_EXPORT CUresult cuStreamBeginCapture(CUstream handle)
{
	return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

DRIVER_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = driver_capture_exchange_mode(*mode);
	return CUDA_SUCCESS;
}
