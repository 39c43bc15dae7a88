/* queue.h - streams: queues of operations that run in order.
 *
 * Every stream numbers its operations 1, 2, 3, ... and knows how many were
 * submitted and how many are complete; "operation n of stream s is complete"
 * is all that ordering needs.  An operation may wait for such points of other
 * streams: that is what the legacy default stream, cuStreamWaitEvent and
 * events are made of.  A point is always one that was submitted before, so
 * waits cannot form a ring.
 *
 * A stream has one worker thread, started when something is queued first.  An
 * operation whose turn it is at once may instead run in the thread that
 * submits it, if that thread would wait for it anyway or if it is short, and
 * kernels in a thread that waits for them, so that nobody has to wake up first: no
 * order can tell the difference.
 *
 * One lock, the queue lock, guards all of this; operations run without it.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_QUEUE_H
#define FARBUS_SOFTGPU_DRIVER_QUEUE_H

#include "context.h"
#include "graph/edges.h"

#include <pthread.h>

#define DRIVER_QUEUE_MAX 1024	/* operations of one stream; submitters then wait */

struct CUstream_st;
struct driver_capture;

/* "The first `sequence` operations of the stream." */
struct driver_point {
	struct CUstream_st *stream;	/* held */
	uint64_t sequence;
};

struct driver_operation {
	struct driver_operation *next;
	uint64_t sequence;
	/* Do the work.  `state` is CUDA_SUCCESS or the context's sticky error; an
	 * operation without run_when_failed is left out then.  What run returns
	 * becomes the sticky error. */
	CUresult (*run)(struct driver_operation *operation, CUresult state);
	/* Free the operation and what it holds; never under the queue lock. */
	void (*release)(struct driver_operation *operation);
	bool run_when_failed;
	bool run_by_waiter;		/* may run in a thread that waits for it */
	bool is_idle;			/* only waits, for another process: touches no memory */
	/* Where a function of the program's ends the thread that it is called on (pthread_exit):
	 * run is called again, and goes on behind it.  Else the operation is over then. */
	bool run_again;
	unsigned point_count;
	struct driver_point *points;
	struct driver_point point_room[2];
};

/* Flags of driver_stream_submit. */
enum {
	DRIVER_SUBMIT_WAIT = 1,		/* return when it is complete */
	DRIVER_SUBMIT_SHORT = 2,	/* may run in the caller if its turn is now */
};

struct CUstream_st {
	struct CUctx_st *context;	/* held */
	struct CUgreenCtx_st *green;	/* held; NULL: a stream of the context alone */
	struct CUstream_st *next;	/* of the context */
	uint64_t id;
	unsigned references;		/* under the queue lock */
	unsigned flags;			/* CU_STREAM_NON_BLOCKING */
	int priority;
	CUlaunchAttributeValue attributes[4];	/* cuStreamSetAttribute */
	bool legacy;			/* the context's default stream */
	bool per_thread;
	bool ended;			/* destroyed: the worker ends when it is idle */
	bool busy;			/* an operation of it runs */
	struct driver_operation *at_work;	/* the one that runs in its worker */
	bool has_worker;
	uint64_t submitted, completed;
	unsigned queued;
	struct driver_operation *head, *tail;
	pthread_cond_t work;		/* for the worker: queue or ended changed */
	pthread_cond_t done;		/* for everybody: completed grew */
	unsigned waiters;		/* on done */
	/* Guarded by the graph lock; read without it to see whether it is NULL. */
	struct driver_capture *capture;	/* that records what is submitted */
	struct CUstream_st *capture_next;	/* of the same capture */
	struct graph_edges frontier;	/* what the next captured node depends on */
};

/* A new stream, with one reference; NULL without memory.  It is a stream of its
 * context, and the reference the context's, once it is linked. */
struct CUstream_st *driver_stream_make(struct CUctx_st *context, unsigned flags);
void driver_stream_link(struct CUstream_st *stream);
/* No longer a stream of its context; what is queued still runs.  Drops the
 * context's reference.  Ending again does nothing. */
void driver_stream_end(struct CUstream_st *stream);
/* All streams of a context, each held, in an array to free; NULL without memory. */
struct CUstream_st **driver_stream_list(struct CUctx_st *context, size_t *count);
bool driver_stream_has_ended(struct CUstream_st *stream);
void driver_stream_hold(struct CUstream_st *stream);
void driver_stream_drop(struct CUstream_st *stream);
/* All that was submitted so far; the caller drops the point. */
void driver_stream_point(struct CUstream_st *stream, struct driver_point *point);
/* Is everything complete that synchronising with the stream would wait for? */
bool driver_stream_is_quiet(struct CUstream_st *stream);

CUresult driver_stream_make_legacy(struct CUctx_st *context);
/* Wait until no operation of any stream runs, then act before the next one does.
 * `act` must call nothing of the streams. */
void driver_stream_between(void (*act)(void *opaque), void *opaque);
/* Wait until everything that was submitted to the context is complete. */
void driver_stream_drain(struct CUctx_st *context);
/* The same for so long at most: false when that was not enough. */
bool driver_stream_drain_for(struct CUctx_st *context, uint64_t ns);
/* Forget all streams of a context that was drained. */
void driver_stream_end_context(struct CUctx_st *context);

/* Queue an operation (a fresh one, with run and release set) and take it over:
 * it is released in every case.  With DRIVER_SUBMIT_WAIT the result is the
 * context's state afterwards, else CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, or
 * CUDA_ERROR_CONTEXT_IS_DESTROYED where the context is ending.
 * *point, if not NULL, becomes the operation's point; the caller drops it. */
CUresult driver_stream_submit(struct CUstream_st *stream, struct driver_operation *operation,
			      unsigned flags, struct driver_point *point);
/* Let the operation wait for a point of another stream, before it is submitted.
 * Takes a hold of its own.  -ENOMEM only. */
int driver_operation_after(struct driver_operation *operation, const struct driver_point *point);

/* One that does nothing, for its place in a stream; NULL without memory. */
struct driver_operation *driver_operation_make_empty(void);
/* Let the stream's later work wait for a point of another one: by an empty operation. */
CUresult driver_stream_follow(struct CUstream_st *stream, const struct driver_point *point);
bool driver_point_reached(const struct driver_point *point);
void driver_point_wait(const struct driver_point *point);
void driver_point_drop(struct driver_point *point);

#endif
