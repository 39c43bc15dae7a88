/* capture.h - recording what is submitted to streams into a graph.
 *
 *             begin                                 end
 *   idle ----------------> active ------------------------------> idle, with a graph
 *                            |                                      ^
 *                            +--> invalidated ----------------------+   without one
 *                     a call that can't be captured
 *
 * A stream of an active capture has a frontier: the nodes that the next one depends on.
 * Another stream joins when it waits for an event that was recorded in the capture.
 * The rules are those of cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_CAPTURE_H
#define FARBUS_SOFTGPU_DRIVER_CAPTURE_H

#include "queue.h"

struct driver_capture {
	struct driver_capture *next;	/* of those under way */
	unsigned references;		/* of the list, and of events */
	uint64_t id;
	CUstreamCaptureMode mode;
	const void *thread;		/* that began it: the address of its mode */
	struct CUgraph_st *graph;
	bool owns_graph;		/* else the program gave it */
	bool ended, invalidated;
	struct CUstream_st *origin;	/* where it began and has to end */
	struct CUstream_st *streams;	/* all that take part, by capture_next */
};

/* What an event stands for that was recorded in a stream that captured. */
struct driver_captured_event {
	struct driver_capture *capture;	/* held; NULL when it is an ordinary event */
	struct graph_edges edges;
};

/* The prologue of calls that submit to a stream.  *capturing: record instead.
 * Errors: the stream's capture is invalidated, or the legacy stream would depend on
 * streams that capture (which invalidates them). */
CUresult driver_capture_enter(struct CUstream_st *stream, bool *capturing);
/* The call can't be captured: invalidate, and return the error that says so. */
CUresult driver_capture_refuse(struct CUstream_st *stream);
/* Both: for calls that make no sense in a capture, also one that is invalidated already. */
CUresult driver_capture_forbid(struct CUstream_st *stream);
/* The prologue of calls that captures don't see, such as cuMemAlloc: refused, and
 * the captures invalidated, as the thread's mode says. */
CUresult driver_capture_unsafe(void);
/* The same for calls that act on all streams of a context, or of a green one, if that is given. */
CUresult driver_capture_forbid_context(const struct CUctx_st *context,
				       const struct CUgreenCtx_st *green);
/* The stream is destroyed. */
void driver_capture_leave(struct CUstream_st *stream);
void driver_capture_end_context(struct CUctx_st *context);

/* ---- events; those that are given are the caller's to guard ---- */

CUresult driver_capture_record(struct CUstream_st *stream, struct driver_captured_event *event);
void driver_capture_forget(struct driver_captured_event *event);
/* May the host ask about this event? */
CUresult driver_capture_check_event(const struct driver_captured_event *event);
/* Or may streams that do not capture wait for it, whichever they are? */
CUresult driver_capture_forbid_event(const struct driver_captured_event *event);
/* Let the stream wait for the event; *taken false leaves it to the stream's queue.
 * `recorded`: it is an ordinary event that was recorded. */
CUresult driver_capture_wait(struct CUstream_st *stream, const struct driver_captured_event *event,
			     bool recorded, bool *taken);

/* ---- nodes: what a call becomes in a stream that captures ---- */

CUresult driver_capture_kernel(struct CUstream_st *stream, const CUlaunchConfig *config,
			       CUfunction function, void **params, void **extra);
CUresult driver_capture_copy(struct CUstream_st *stream, const CUDA_MEMCPY3D *params);
CUresult driver_capture_fill(struct CUstream_st *stream, const CUDA_MEMSET_NODE_PARAMS *params);
CUresult driver_capture_host(struct CUstream_st *stream, const CUDA_HOST_NODE_PARAMS *params);
CUresult driver_capture_words(struct CUstream_st *stream, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params);
CUresult driver_capture_event_node(struct CUstream_st *stream, CUgraphNodeType type, CUevent event);
CUresult driver_capture_alloc(struct CUstream_st *stream, size_t bytes, CUdeviceptr *address);
CUresult driver_capture_free(struct CUstream_st *stream, CUdeviceptr address);
/* A graph is launched: it becomes a child graph. */
CUresult driver_capture_graph(struct CUstream_st *stream, const struct CUgraph_st *graph);

/* ---- what the program does with captures; with the graph lock ---- */

/* Of a stream that does not capture; the graph, if the program gave one, and its nodes to begin at
 * are in order. */
CUresult driver_capture_begin(struct CUstream_st *stream, struct CUgraph_st *graph,
			      const struct graph_edges *start, CUstreamCaptureMode mode);
/* *graph is NULL where it is void. */
CUresult driver_capture_end(struct CUstream_st *stream, CUgraph *graph);
/* Asking does not invalidate. */
CUresult driver_capture_status(const struct CUstream_st *stream, CUstreamCaptureStatus *status);
/* The calling thread's mode; without the lock. */
CUstreamCaptureMode driver_capture_exchange_mode(CUstreamCaptureMode mode);

#endif
