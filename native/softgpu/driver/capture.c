#include "capture.h"

#include "graph/graph.h"
#include "graph/memory.h"

#include <stdlib.h>

static struct driver_capture *captures;
static unsigned under_way;		/* their number; read without the lock */
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- life; with the graph lock ---- */

static void capture_drop(struct driver_capture *capture)
{
	if (!--capture->references)
		free(capture);
}

static void invalidate(struct driver_capture *capture)
{
	capture->invalidated = true;
}

static void join(struct CUstream_st *stream, struct driver_capture *capture)
{
	stream->capture_next = capture->streams;
	capture->streams = stream;
	__atomic_store_n(&stream->capture, capture, __ATOMIC_RELEASE);
}

static void part(struct CUstream_st *stream)
{
	struct CUstream_st **link = &stream->capture->streams;

	while (*link != stream)
		link = &(*link)->capture_next;
	*link = stream->capture_next;
	__atomic_store_n(&stream->capture, NULL, __ATOMIC_RELEASE);
	graph_edges_clear(&stream->frontier);
}

/* All streams are as before.  The graph is returned, or NULL when it is void. */
static struct CUgraph_st *capture_end(struct driver_capture *capture)
{
	struct driver_capture **link = &captures;
	struct CUgraph_st *graph = capture->graph;

	while (*link != capture)
		link = &(*link)->next;
	*link = capture->next;
	while (capture->streams)
		part(capture->streams);
	graph->captures--;
	if (capture->invalidated) {
		if (capture->owns_graph)
			driver_graph_free(graph);
		graph = NULL;
	}
	capture->graph = NULL;
	capture->ended = true;
	__atomic_sub_fetch(&under_way, 1, __ATOMIC_RELEASE);
	capture_drop(capture);
	return graph;
}

/* Does all that the stream captured come before something in the origin stream?  Nodes that the program added
 * and made the stream's dependencies were captured by none: NCCL leaves such behind. */
static bool is_joined(const struct CUstream_st *stream, uint64_t mark)
{
	for (size_t i = 0; i < stream->frontier.count; i++) {
		const struct CUgraphNode_st *node = stream->frontier.nodes[i];

		if (node->captured && node->mark != mark)
			return false;
	}
	return true;
}

/* Does all that the stream captured come before something in another one, which who joins that has then joined, too?
 * Without memory to find out: no. */
static bool is_joined_elsewhere(const struct CUstream_st *stream)
{
	struct graph_edges others = { 0 };
	const struct CUstream_st *other;
	bool joined = true;

	for (other = stream->capture->streams; other && joined; other = other->capture_next)
		joined = other == stream || graph_edges_unite(&others, &other->frontier);
	joined = joined && is_joined(stream, driver_graph_mark_before(others.nodes, others.count));
	graph_edges_clear(&others);
	return joined;
}

static bool all_joined(const struct driver_capture *capture)
{
	uint64_t mark = driver_graph_mark_before(capture->origin->frontier.nodes,
						 capture->origin->frontier.count);
	const struct CUstream_st *stream;

	for (stream = capture->streams; stream; stream = stream->capture_next) {
		if (!is_joined(stream, mark))
			return false;
	}
	return true;
}

/* A blocking stream of the context captures into it. */
static bool is_implied(const struct driver_capture *capture, const struct CUctx_st *context)
{
	const struct CUstream_st *stream;

	for (stream = capture->streams; stream; stream = stream->capture_next) {
		if (stream->context == context && !(stream->flags & CU_STREAM_NON_BLOCKING))
			return true;
	}
	return false;
}

/* ---- prologues ---- */

static bool none_under_way(void)
{
	return !__atomic_load_n(&under_way, __ATOMIC_ACQUIRE);
}

CUresult driver_capture_enter(struct CUstream_st *stream, bool *capturing)
{
	CUresult result = CUDA_SUCCESS;

	*capturing = false;
	if (none_under_way())
		return CUDA_SUCCESS;
	driver_graph_lock();
	if (stream->capture) {
		*capturing = !stream->capture->invalidated;
		if (!*capturing)
			result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else if (stream->legacy) {
		for (struct driver_capture *capture = captures; capture; capture = capture->next) {
			if (!is_implied(capture, stream->context))
				continue;
			invalidate(capture);
			result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
	}
	driver_graph_unlock();
	return result;
}

static void spoil(struct CUstream_st *stream)
{
	driver_graph_lock();
	if (stream->capture)
		invalidate(stream->capture);
	driver_graph_unlock();
}

CUresult driver_capture_refuse(struct CUstream_st *stream)
{
	spoil(stream);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult driver_capture_forbid(struct CUstream_st *stream)
{
	bool capturing;
	CUresult result = driver_capture_enter(stream, &capturing);

	return capturing || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ?
		driver_capture_refuse(stream) : result;
}

CUresult driver_capture_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;

	if (none_under_way() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	driver_graph_lock();
	for (struct driver_capture *capture = captures; capture; capture = capture->next) {
		bool own = capture->thread == &thread_mode;

		if (capture->invalidated || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
			continue;
		if (own || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
			    capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL)) {
			invalidate(capture);
			result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	driver_graph_unlock();
	return result;
}

/* Does a stream of the context, or of the green one, capture into it? */
static bool is_of(const struct driver_capture *capture, const struct CUctx_st *context,
		  const struct CUgreenCtx_st *green)
{
	const struct CUstream_st *stream;

	for (stream = capture->streams; stream; stream = stream->capture_next) {
		if (stream->context == context && (!green || stream->green == green))
			return true;
	}
	return false;
}

CUresult driver_capture_forbid_context(const struct CUctx_st *context,
				       const struct CUgreenCtx_st *green)
{
	CUresult result = CUDA_SUCCESS;

	if (none_under_way())
		return CUDA_SUCCESS;
	driver_graph_lock();
	for (struct driver_capture *capture = captures; capture; capture = capture->next) {
		if (!is_of(capture, context, green))
			continue;
		invalidate(capture);
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	driver_graph_unlock();
	return result;
}

/* With the lock. */
static void leave(struct CUstream_st *stream)
{
	struct driver_capture *capture = stream->capture;

	if (capture->origin == stream) {
		invalidate(capture);
		capture_end(capture);
		return;
	}
	/* What it captured may be joined already; else nobody can join it any more. */
	if (!capture->invalidated && !is_joined_elsewhere(stream))
		invalidate(capture);
	part(stream);
}

void driver_capture_leave(struct CUstream_st *stream)
{
	if (none_under_way())
		return;
	driver_graph_lock();
	if (stream->capture)
		leave(stream);
	driver_graph_unlock();
}

void driver_capture_end_context(struct CUctx_st *context)
{
	struct driver_capture *capture, *next;

	driver_graph_lock();
	for (capture = captures; capture; capture = next) {
		struct CUstream_st *stream;

		next = capture->next;
		for (stream = capture->streams; stream && stream->context != context; )
			stream = stream->capture_next;
		if (stream) {
			invalidate(capture);
			capture_end(capture);
		}
	}
	driver_graph_unlock();
}

/* ---- events ---- */

CUresult driver_capture_record(struct CUstream_st *stream, struct driver_captured_event *event)
{
	struct driver_captured_event before = *event, now = { 0 };
	CUresult result = CUDA_SUCCESS;

	driver_graph_lock();
	if (!stream->capture || stream->capture->invalidated) {
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else if (!graph_edges_unite(&now.edges, &stream->frontier)) {
		graph_edges_clear(&now.edges);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		now.capture = stream->capture;
		now.capture->references++;
		*event = now;
		graph_edges_clear(&before.edges);
		if (before.capture)
			capture_drop(before.capture);
	}
	driver_graph_unlock();
	return result;
}

void driver_capture_forget(struct driver_captured_event *event)
{
	if (!__atomic_load_n(&event->capture, __ATOMIC_ACQUIRE))
		return;
	driver_graph_lock();
	if (event->capture)
		capture_drop(event->capture);
	event->capture = NULL;
	graph_edges_clear(&event->edges);
	driver_graph_unlock();
}

/* The capture that the event is of is invalidated; `under_way` is the error while that has not ended. */
static CUresult forbid_captured(const struct driver_captured_event *event, CUresult under_way)
{
	CUresult result = CUDA_SUCCESS;

	driver_graph_lock();
	if (event->capture) {
		result = event->capture->ended ? CUDA_ERROR_CAPTURED_EVENT : under_way;
		invalidate(event->capture);
	}
	driver_graph_unlock();
	return result;
}

CUresult driver_capture_check_event(const struct driver_captured_event *event)
{
	if (!__atomic_load_n(&event->capture, __ATOMIC_ACQUIRE))
		return driver_capture_unsafe();
	return forbid_captured(event, CUDA_ERROR_CAPTURED_EVENT);
}

CUresult driver_capture_forbid_event(const struct driver_captured_event *event)
{
	if (!__atomic_load_n(&event->capture, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	return forbid_captured(event, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

/* With the lock: the stream captures, or the event was captured. */
static CUresult wait_captured(struct CUstream_st *stream, const struct driver_captured_event *event,
			      bool recorded, bool *taken)
{
	struct driver_capture *mine = stream->capture, *its = event->capture;

	if (mine && (!its || its->ended)) {
		*taken = true;	/* there is nothing to wait for, or it can't be captured */
		if (!recorded && !its)
			return CUDA_SUCCESS;
		invalidate(mine);
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	if (its->ended)
		return CUDA_ERROR_CAPTURED_EVENT;
	if (its->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (mine && mine != its) {
		invalidate(mine);
		invalidate(its);
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (stream->legacy) {
		invalidate(its);
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	if (!mine)
		join(stream, its);
	*taken = true;
	if (graph_edges_unite(&stream->frontier, &event->edges))
		return CUDA_SUCCESS;
	invalidate(its);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult driver_capture_wait(struct CUstream_st *stream, const struct driver_captured_event *event,
			     bool recorded, bool *taken)
{
	CUresult result = CUDA_SUCCESS;

	*taken = false;
	if (none_under_way() && !__atomic_load_n(&event->capture, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	driver_graph_lock();
	if (stream->capture || event->capture)
		result = wait_captured(stream, event, recorded, taken);
	driver_graph_unlock();
	return result;
}

/* ---- nodes ---- */

/* With the lock.  Add behind the frontier, which the node then is. */
static CUresult add_here(struct CUstream_st *stream, struct graph_payload *payload)
{
	struct graph_edges *frontier = &stream->frontier, now = { 0 };
	struct CUgraphNode_st *node;
	CUresult result;

	if (!stream->capture || stream->capture->invalidated) {
		driver_graph_payload_drop(payload);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	if (!graph_edges_add(&now, NULL, NULL)) {
		driver_graph_payload_drop(payload);
		graph_edges_clear(&now);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	result = driver_graph_add(stream->capture->graph, frontier->nodes, frontier->data,
				  frontier->count, payload, &node);
	if (result) {
		graph_edges_clear(&now);
		return result;
	}
	node->captured = true;
	now.nodes[0] = node;
	graph_edges_clear(frontier);
	*frontier = now;
	return CUDA_SUCCESS;
}

/* The payload is taken over in every case. */
static CUresult add(struct CUstream_st *stream, struct graph_payload *payload)
{
	CUresult result;

	driver_graph_lock();
	result = add_here(stream, payload);
	driver_graph_unlock();
	return result;
}

CUresult driver_capture_kernel(struct CUstream_st *stream, const CUlaunchConfig *config,
			       CUfunction function, void **params, void **extra)
{
	struct graph_payload payload;
	CUresult result = driver_graph_kernel(stream->context, config, function, params, extra,
					      &payload);

	if (!result)
		return add(stream, &payload);
	spoil(stream);
	return result;
}

CUresult driver_capture_copy(struct CUstream_st *stream, const CUDA_MEMCPY3D *params)
{
	struct graph_payload payload;
	CUresult result = driver_graph_memcpy(stream->context, params, &payload);

	return result ? result : add(stream, &payload);
}

CUresult driver_capture_fill(struct CUstream_st *stream, const CUDA_MEMSET_NODE_PARAMS *params)
{
	struct graph_payload payload;
	CUresult result = driver_graph_memset(stream->context, params, &payload);

	return result ? result : add(stream, &payload);
}

CUresult driver_capture_host(struct CUstream_st *stream, const CUDA_HOST_NODE_PARAMS *params)
{
	struct graph_payload payload;
	CUresult result = driver_graph_host(params, &payload);

	return result ? result : add(stream, &payload);
}

CUresult driver_capture_words(struct CUstream_st *stream, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	struct graph_payload payload;
	CUresult result = driver_graph_words(stream->context, params, &payload);

	return result ? result : add(stream, &payload);
}

CUresult driver_capture_event_node(struct CUstream_st *stream, CUgraphNodeType type, CUevent event)
{
	struct graph_payload payload;
	CUresult result = driver_graph_event(type, event, &payload);

	return result ? result : add(stream, &payload);
}

CUresult driver_capture_alloc(struct CUstream_st *stream, size_t bytes, CUdeviceptr *address)
{
	const CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {
			.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = { CU_MEM_LOCATION_TYPE_DEVICE, stream->context->device->ordinal },
		},
		.bytesize = bytes,
	};
	struct graph_payload payload = { .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC };
	CUdeviceptr made;
	CUresult result = CUDA_SUCCESS;

	driver_graph_lock();
	if (stream->capture && !stream->capture->invalidated)
		payload.allocation = driver_graph_reuse(stream->capture->graph,
							stream->frontier.nodes,
							stream->frontier.count, &params);
	driver_graph_unlock();
	if (!payload.allocation)
		result = driver_graph_allocation_make(stream->context, &params, &payload.allocation);
	if (result)
		return result;
	made = driver_graph_allocation_address(payload.allocation);
	result = add(stream, &payload);
	if (!result)
		*address = made;
	return result;
}

CUresult driver_capture_free(struct CUstream_st *stream, CUdeviceptr address)
{
	struct graph_payload payload = {
		.type = CU_GRAPH_NODE_TYPE_MEM_FREE,
		.allocation = driver_graph_allocation_of(address),
	};

	return payload.allocation ? add(stream, &payload) : CUDA_ERROR_INVALID_VALUE;
}

CUresult driver_capture_graph(struct CUstream_st *stream, const struct CUgraph_st *graph)
{
	struct graph_payload payload = { .type = CU_GRAPH_NODE_TYPE_GRAPH };
	CUresult result;

	driver_graph_lock();
	result = driver_graph_has_memory(graph) || driver_graph_has_conditional(graph) ?
		 CUDA_ERROR_NOT_SUPPORTED : driver_graph_copy(graph, false, &payload.child);
	if (!result)
		result = add_here(stream, &payload);
	driver_graph_unlock();
	return result;
}

/* ---- beginning and ending ---- */

CUresult driver_capture_begin(struct CUstream_st *stream, struct CUgraph_st *graph,
			      const struct graph_edges *start, CUstreamCaptureMode mode)
{
	static uint64_t last_id;
	struct driver_capture *capture = calloc(1, sizeof *capture);

	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	capture->owns_graph = !graph;
	capture->graph = graph ? graph : driver_graph_make(false);
	if (!capture->graph || (start && !graph_edges_unite(&stream->frontier, start))) {
		if (capture->graph && !graph)
			driver_graph_free(capture->graph);
		graph_edges_clear(&stream->frontier);
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->graph->captures++;
	capture->references = 1;
	capture->id = ++last_id;
	capture->mode = mode;
	capture->thread = &thread_mode;
	capture->origin = stream;
	capture->next = captures;
	captures = capture;
	join(stream, capture);
	__atomic_add_fetch(&under_way, 1, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

CUresult driver_capture_end(struct CUstream_st *stream, CUgraph *graph)
{
	struct driver_capture *capture = stream->capture;
	CUresult result = CUDA_SUCCESS;

	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream) {
		invalidate(capture);
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &thread_mode)
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (capture->invalidated) {
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else if (!all_joined(capture)) {
		invalidate(capture);
		result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	}
	*graph = capture_end(capture);
	return result;
}

CUresult driver_capture_status(const struct CUstream_st *stream, CUstreamCaptureStatus *status)
{
	if (stream->legacy) {
		for (struct driver_capture *capture = captures; capture; capture = capture->next) {
			if (is_implied(capture, stream->context))
				return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
	}
	*status = !stream->capture ? CU_STREAM_CAPTURE_STATUS_NONE :
		  stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED :
						 CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return CUDA_SUCCESS;
}

CUstreamCaptureMode driver_capture_exchange_mode(CUstreamCaptureMode mode)
{
	CUstreamCaptureMode before = thread_mode;

	thread_mode = mode;
	return before;
}
