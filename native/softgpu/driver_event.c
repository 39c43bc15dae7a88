#include "driver_event.h"

#include "driver_capture.h"
#include "driver_event_share.h"
#include "driver_green.h"
#include "driver_handle.h"
#include "driver_memory.h"
#include "driver_stream.h"

#include <stdlib.h>
#include <time.h>

/* What one cuEventRecord recorded: a point of a stream and, once the point is
 * reached, the time.  Recording again makes another one, so that waits on the
 * earlier one keep their meaning. */
struct event_record {
	unsigned references;		/* under event_lock */
	struct driver_point point;
	uint64_t time_ns;		/* written by the stream before the point is reached */
	struct driver_shared_event *shared;	/* held, or NULL */
	uint64_t number;		/* of the record, in shared */
};

struct CUevent_st {
	struct CUctx_st *context;	/* held */
	unsigned flags;
	struct event_record *record;	/* under event_lock; NULL before the first record */
	struct driver_shared_event *shared;	/* with CU_EVENT_INTERPROCESS */
	/* Instead of a record, when it was last recorded in a stream that captured. */
	struct driver_captured_event captured;
};

static pthread_mutex_t event_lock = PTHREAD_MUTEX_INITIALIZER;

static void record_drop(struct event_record *record)
{
	bool last;

	if (!record)
		return;
	pthread_mutex_lock(&event_lock);
	last = !--record->references;
	pthread_mutex_unlock(&event_lock);
	if (last) {
		driver_point_drop(&record->point);
		driver_shared_event_drop(record->shared);
		free(record);
	}
}

static struct event_record *record_of(struct CUevent_st *event)
{
	struct event_record *record;

	pthread_mutex_lock(&event_lock);
	record = event->record;
	if (record)
		record->references++;
	pthread_mutex_unlock(&event_lock);
	return record;
}

static CUresult event_of(CUevent event)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	return driver_handle_is(event, DRIVER_KIND_EVENT) ? CUDA_SUCCESS :
							    CUDA_ERROR_INVALID_HANDLE;
}

CUresult driver_event_make(struct CUctx_st *context, unsigned flags,
			   struct driver_shared_event *shared, CUevent *out)
{
	struct CUevent_st *event = calloc(1, sizeof *event);

	if (!event || driver_handle_add(event, DRIVER_KIND_EVENT)) {
		driver_shared_event_drop(shared);
		free(event);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	event->context = context;
	event->flags = flags;
	event->shared = shared;
	driver_context_hold(context);
	*out = event;
	return CUDA_SUCCESS;
}

CUresult driver_event_shared(CUevent event, struct driver_shared_event **shared)
{
	CUresult result = event_of(event);

	if (!result)
		*shared = event->shared;
	return result;
}

DRIVER_EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	struct driver_shared_event *shared = NULL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!out || flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING |
					CU_EVENT_INTERPROCESS))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & CU_EVENT_INTERPROCESS) {
		if (!(flags & CU_EVENT_DISABLE_TIMING))
			return CUDA_ERROR_INVALID_VALUE;
		shared = driver_shared_event_make();
		if (!shared)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return driver_event_make(context, flags, shared, out);
}

DRIVER_EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!driver_handle_remove(event, DRIVER_KIND_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	result = driver_context_state(event->context);
	driver_capture_forget(&event->captured);
	record_drop(event->record);
	driver_shared_event_drop(event->shared);
	driver_context_drop(event->context);
	free(event);
	return result;
}

DRIVER_FIRST_NAME(cuEventDestroy);

/* ---- recording ---- */

struct record_operation {
	struct driver_operation base;
	struct event_record *record;
};

static CUresult run_record(struct driver_operation *operation, CUresult state)
{
	struct event_record *record = ((struct record_operation *)operation)->record;
	struct timespec now;

	(void)state;
	clock_gettime(CLOCK_MONOTONIC, &now);
	record->time_ns = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
	return CUDA_SUCCESS;
}

static void release_record(struct driver_operation *operation)
{
	struct event_record *record = ((struct record_operation *)operation)->record;

	/* Also when it could not be queued: nobody may wait for it then. */
	if (record->shared)
		driver_shared_event_reach(record->shared, record->number);
	record_drop(record);
	free(operation);
}

bool driver_event_is_of(CUevent event, const struct CUctx_st *context)
{
	return event->context == context;
}

CUresult driver_event_submit_record(CUevent event, struct CUstream_st *stream)
{
	struct record_operation *operation;
	struct event_record *record, *before;
	struct driver_point point;
	CUresult result;

	if (stream->context != event->context)
		return CUDA_ERROR_INVALID_HANDLE;
	operation = calloc(1, sizeof *operation);
	record = calloc(1, sizeof *record);
	if (!operation || !record) {
		free(operation);
		free(record);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	record->references = 2;		/* the operation's and the event's */
	operation->record = record;
	operation->base.run = run_record;
	operation->base.release = release_record;
	operation->base.run_when_failed = true;
	if (event->shared) {
		driver_shared_event_hold(event->shared);
		record->shared = event->shared;
		record->number = driver_shared_event_record(event->shared);
	}
	result = driver_stream_submit(stream, &operation->base, DRIVER_SUBMIT_SHORT, &point);
	if (result) {
		record_drop(record);
		return result;
	}
	record->point = point;
	driver_capture_forget(&event->captured);
	pthread_mutex_lock(&event_lock);
	before = event->record;
	event->record = record;
	pthread_mutex_unlock(&event_lock);
	record_drop(before);
	return CUDA_SUCCESS;
}

/* In a capture the event stands for what was captured so far. */
static CUresult capture_record(struct CUstream_st *stream, CUevent event)
{
	struct event_record *before;
	CUresult result = driver_capture_record(stream, &event->captured);

	if (result)
		return result;
	pthread_mutex_lock(&event_lock);
	before = event->record;
	event->record = NULL;
	pthread_mutex_unlock(&event_lock);
	record_drop(before);
	return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream handle, unsigned flags)
{
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = event_of(event);

	if (!result)
		result = driver_stream_enter_or_capture(handle, &stream, &capturing);
	if (result)
		return result;
	if (!capturing) {
		/* "This flag is invalid when used outside of capture." */
		return flags ? CUDA_ERROR_INVALID_VALUE : driver_event_submit_record(event, stream);
	}
	if (stream->context != event->context)
		return CUDA_ERROR_INVALID_HANDLE;
	return flags ? driver_capture_event_node(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event) :
		       capture_record(stream, event);
}

DRIVER_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
	return event_record(event, stream, 0);
}

DRIVER_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	return event_record(event, stream, flags);
}

/* ---- waiting ---- */

/* The last record, if it is another process's: its number, else 0. */
static uint64_t foreign_record(const struct CUevent_st *event, const struct event_record *record)
{
	uint64_t last = event->shared ? driver_shared_event_last(event->shared) : 0;

	return record && record->number >= last ? 0 : last;
}

DRIVER_EXPORT CUresult cuEventQuery(CUevent event)
{
	struct event_record *record;
	CUresult result = event_of(event);
	bool reached = true;
	uint64_t foreign;

	if (!result)
		result = driver_capture_check_event(&event->captured);
	if (result)
		return result;
	record = record_of(event);
	foreign = foreign_record(event, record);
	if (foreign)
		reached = driver_shared_event_is_reached(event->shared, foreign);
	else if (record)
		reached = driver_point_reached(&record->point);
	record_drop(record);
	result = driver_context_state(event->context);
	return result ? result : reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

DRIVER_EXPORT CUresult cuEventSynchronize(CUevent event)
{
	struct event_record *record;
	struct driver_shared_event *shared;
	struct CUctx_st *context;
	CUresult result = event_of(event);
	uint64_t foreign;

	if (!result)
		result = driver_capture_check_event(&event->captured);
	if (result)
		return result;
	context = event->context;
	shared = event->shared;
	record = record_of(event);
	foreign = foreign_record(event, record);
	if (foreign) {
		/* The event may be destroyed while we wait. */
		driver_shared_event_hold(shared);
		driver_shared_event_wait(shared, foreign);
		driver_shared_event_drop(shared);
	} else if (record)
		driver_point_wait(&record->point);
	record_drop(record);
	driver_pool_settle();
	return driver_context_state(context);
}

static CUresult nothing(struct driver_operation *operation, CUresult state)
{
	(void)operation, (void)state;
	return CUDA_SUCCESS;
}

static void release_wait(struct driver_operation *operation)
{
	free(operation);
}

/* An empty operation that has to wait makes everything behind it wait too. */
static CUresult wait_for(struct CUstream_st *stream, const struct driver_point *point)
{
	struct driver_operation *wait;

	if (point->stream == stream || driver_point_reached(point))
		return CUDA_SUCCESS;
	wait = calloc(1, sizeof *wait);
	if (!wait)
		return CUDA_ERROR_OUT_OF_MEMORY;
	wait->run = nothing;
	wait->release = release_wait;
	if (driver_operation_after(wait, point)) {
		free(wait);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return driver_stream_submit(stream, wait, DRIVER_SUBMIT_SHORT, NULL);
}

CUresult driver_event_submit_wait(CUevent event, struct CUstream_st *stream)
{
	struct event_record *record = record_of(event);
	uint64_t foreign = foreign_record(event, record);
	CUresult result = CUDA_SUCCESS;

	if (foreign)
		result = driver_shared_event_follow(stream, event->shared, foreign);
	else if (record)
		result = wait_for(stream, &record->point);
	record_drop(record);
	return result;
}

static bool event_is_recorded(CUevent event)
{
	struct event_record *record = record_of(event);

	record_drop(record);
	return record != NULL;
}

DRIVER_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
	struct CUstream_st *stream;
	bool capturing, taken;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (!result)
		result = event_of(event);
	if (result)
		return result;
	if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL || (flags && !capturing))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags)
		return driver_capture_event_node(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
	/* A captured event takes the stream into its capture. */
	result = driver_capture_wait(stream, &event->captured, event_is_recorded(event),
				     &taken);
	return result || taken ? result : driver_event_submit_wait(event, stream);
}

/* ---- timing ---- */

static CUresult elapsed(float *milliseconds, const struct event_record *from,
			const struct event_record *to)
{
	if (!from || !to)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!driver_point_reached(&from->point) || !driver_point_reached(&to->point))
		return CUDA_ERROR_NOT_READY;
	*milliseconds = (float)((double)(int64_t)(to->time_ns - from->time_ns) * 1e-6);
	return CUDA_SUCCESS;
}

static CUresult event_elapsed(float *milliseconds, CUevent start, CUevent end)
{
	struct event_record *from, *to;
	CUresult result = event_of(start);

	if (!result)
		result = event_of(end);
	if (result)
		return result;
	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING ||
	    start->context != end->context)
		return CUDA_ERROR_INVALID_HANDLE;
	result = driver_context_state(start->context);
	if (!result)
		result = driver_capture_check_event(&start->captured);
	if (!result)
		result = driver_capture_check_event(&end->captured);
	if (result)
		return result;
	from = record_of(start);
	to = record_of(end);
	result = elapsed(milliseconds, from, to);
	record_drop(from);
	record_drop(to);
	return result;
}

DRIVER_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	return event_elapsed(milliseconds, start, end);
}

DRIVER_EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	return event_elapsed(milliseconds, start, end);
}

/* ---- events of whole contexts ---- */

/* Recorded behind all that the context's streams have been given, by an operation of a
 * stream of its own that waits for them; of a green context, its own streams. */
DRIVER_EXPORT CUresult cuCtxRecordEvent(CUcontext handle, CUevent event)
{
	struct CUgreenCtx_st *green;
	struct CUctx_st *context;
	struct CUstream_st *stream, **streams;
	CUresult result = event_of(event);
	size_t count;

	if (result)
		return result;
	result = driver_context_named(handle, &context, &green);
	if (result)
		return result;
	if (event->context != context)
		return CUDA_ERROR_INVALID_HANDLE;
	result = driver_context_state(context);
	if (result)
		return result;
	streams = driver_stream_list(context, &count);
	stream = streams ? driver_stream_make(context, CU_STREAM_NON_BLOCKING) : NULL;
	if (stream)
		driver_stream_link(stream);
	else
		result = CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t k = 0; streams && k < count; k++) {
		struct driver_point point;

		if (!green || streams[k]->green == green) {
			driver_stream_point(streams[k], &point);
			if (!result)
				result = wait_for(stream, &point);
			driver_point_drop(&point);
		}
		driver_stream_drop(streams[k]);
	}
	free(streams);
	if (!result)
		result = driver_event_submit_record(event, stream);
	if (stream)
		driver_stream_end(stream);
	return result;
}

/* What the context's streams are given from now on waits for the event. */
DRIVER_EXPORT CUresult cuCtxWaitEvent(CUcontext handle, CUevent event)
{
	struct CUgreenCtx_st *green;
	struct CUctx_st *context;
	struct CUstream_st **streams;
	CUresult result = event_of(event);
	size_t count;

	if (result)
		return result;
	result = driver_context_named(handle, &context, &green);
	if (!result)
		result = driver_context_state(context);
	if (result)
		return result;
	streams = driver_stream_list(context, &count);
	if (!streams)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t k = 0; k < count; k++) {
		if (!result && !streams[k]->capture && !driver_stream_has_ended(streams[k]) &&
		    (!green || streams[k]->green == green))
			result = driver_event_submit_wait(event, streams[k]);
		driver_stream_drop(streams[k]);
	}
	free(streams);
	return result;
}
