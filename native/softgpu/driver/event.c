#include "event.h"

#include "event_share.h"
#include "handle.h"
#include "../engine/clock.h"

#include <pthread.h>
#include <stdlib.h>

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

/* ---- life ---- */

CUresult driver_event_of(CUevent event)
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

	if (!event || driver_handle_add(event, DRIVER_KIND_EVENT, NULL)) {
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

void driver_event_free(CUevent event)
{
	driver_capture_forget(&event->captured);
	record_drop(event->record);
	driver_shared_event_drop(event->shared);
	driver_context_drop(event->context);
	free(event);
}

/* ---- recording ---- */

struct record_operation {
	struct driver_operation base;
	struct event_record *record;
};

static CUresult run_record(struct driver_operation *operation, CUresult state)
{
	struct event_record *record = ((struct record_operation *)operation)->record;

	(void)state;
	record->time_ns = clock_monotonic_ns();
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

CUresult driver_event_capture(CUevent event, struct CUstream_st *stream)
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

/* ---- waiting ---- */

/* The last record, if it is another process's: its number, else 0. */
static uint64_t foreign_record(const struct CUevent_st *event, const struct event_record *record)
{
	uint64_t last = event->shared ? driver_shared_event_last(event->shared) : 0;

	return record && record->number >= last ? 0 : last;
}

bool driver_event_is_recorded(CUevent event)
{
	struct event_record *record = record_of(event);

	record_drop(record);
	return record != NULL;
}

bool driver_event_is_reached(CUevent event)
{
	struct event_record *record = record_of(event);
	uint64_t foreign = foreign_record(event, record);
	bool reached = true;

	if (foreign)
		reached = driver_shared_event_is_reached(event->shared, foreign);
	else if (record)
		reached = driver_point_reached(&record->point);
	record_drop(record);
	return reached;
}

void driver_event_wait(CUevent event)
{
	struct event_record *record = record_of(event);
	struct driver_shared_event *shared = event->shared;
	uint64_t foreign = foreign_record(event, record);

	if (foreign) {
		/* The event may be destroyed while we wait. */
		driver_shared_event_hold(shared);
		driver_shared_event_wait(shared, foreign);
		driver_shared_event_drop(shared);
	} else if (record) {
		driver_point_wait(&record->point);
	}
	record_drop(record);
}

CUresult driver_event_submit_wait(CUevent event, struct CUstream_st *stream)
{
	struct event_record *record = record_of(event);
	uint64_t foreign = foreign_record(event, record);
	CUresult result = CUDA_SUCCESS;

	if (foreign)
		result = driver_shared_event_follow(stream, event->shared, foreign);
	else if (record)
		result = driver_stream_follow(stream, &record->point);
	record_drop(record);
	return result;
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

CUresult driver_event_elapsed(float *milliseconds, CUevent start, CUevent end)
{
	struct event_record *from = record_of(start), *to = record_of(end);
	CUresult result = elapsed(milliseconds, from, to);

	record_drop(from);
	record_drop(to);
	return result;
}
