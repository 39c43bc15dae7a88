/* event.h - events: points of streams that the program names, and their times.
 *
 * One of several processes (CU_EVENT_INTERPROCESS) shares what was recorded last with them
 * (event_share.h); one that was recorded in a capture stands for what was captured so far.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_EVENT_H
#define FARBUS_SOFTGPU_DRIVER_EVENT_H

#include "capture.h"
#include "queue.h"

struct driver_shared_event;
struct event_record;

struct CUevent_st {
	struct CUctx_st *context;	/* held */
	unsigned flags;
	struct event_record *record;	/* under a lock of its own; NULL before the first record */
	struct driver_shared_event *shared;	/* with CU_EVENT_INTERPROCESS */
	/* Instead of a record, when it was last recorded in a stream that captured. */
	struct driver_captured_event captured;
};

/* Ready, and an event?  CUDA_ERROR_INVALID_HANDLE; all below are given such ones. */
CUresult driver_event_of(CUevent event);
/* One with a handle.  `shared`: NULL, or taken over, also on error. */
CUresult driver_event_make(struct CUctx_st *context, unsigned flags,
			   struct driver_shared_event *shared, CUevent *out);
/* It has no handle any more; who waits for what was recorded still does. */
void driver_event_free(CUevent event);

CUresult driver_event_submit_record(CUevent event, struct CUstream_st *stream);
/* The same in a stream that captures. */
CUresult driver_event_capture(CUevent event, struct CUstream_st *stream);
/* Let the stream's later work wait for what was recorded last. */
CUresult driver_event_submit_wait(CUevent event, struct CUstream_st *stream);

/* Of the last record, by this process or another one: of none, nothing is waited for. */
bool driver_event_is_recorded(CUevent event);
bool driver_event_is_reached(CUevent event);
void driver_event_wait(CUevent event);
/* CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_READY */
CUresult driver_event_elapsed(float *milliseconds, CUevent start, CUevent end);

#endif
