/* Events: named here, made on the server by posted messages. */
#include "../exchange/captures.h"
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../handles/events.h"
#include "../handles/route.h"
#include "../handles/streams.h"

#include <stdlib.h>

/* ---- what is known (events.c) ---- */

/* Of several threads' records in one stream nobody knows which came first: counted before one is on its way, and again
 * behind it, they tell. */
static uint64_t record_begin(struct client_event *event)
{
	struct client_events *events = &event->context->events;
	uint64_t before;

	pthread_mutex_lock(&events->lock);
	event->number = 0;
	event->overlaps = event->recording++ > 0 || event->overlaps;
	before = events->recorded;
	pthread_mutex_unlock(&events->lock);
	return before;
}

/* Behind the record, so that nobody waits for one that is not on its way, and takes it for over.  Of records of the same
 * event at a time nobody knows which was the last.  `known`: what the stream is, and that it is one. */
static void record_end(struct client_event *event, uint64_t before, uint64_t stream, bool known)
{
	struct client_events *events = &event->context->events;
	uint64_t number;

	pthread_mutex_lock(&events->lock);
	number = ++events->recorded;
	known = known && !event->overlaps;
	if (--event->recording == 0)
		event->overlaps = false;
	event->stream = stream;
	event->number = known ? number : 0;
	event->behind = number == before + 1 ? number : before;
	pthread_mutex_unlock(&events->lock);
}

static bool records_are_over(const struct client_event *event)
{
	struct client_context *context = event->context;
	const struct client_settled *settled;
	bool over;

	if (event->flags & CU_EVENT_INTERPROCESS)
		return false;
	pthread_mutex_lock(&context->events.lock);
	settled = client_settled_of(context, event->stream);
	over = event->number > context->events.ended && !event->elsewhere &&
	       (event->number <= context->events.settled_all ||
		(settled->stream == event->stream && event->number <= settled->number));
	pthread_mutex_unlock(&context->events.lock);
	return over;
}

/* Known to be over?  What failed meanwhile, and what managed memory has to do at a wait, the server's answer brings. */
static bool is_over(uint64_t wire)
{
	const struct client_event *event = handle_get(&farbus_client.handles, HANDLE_EVENT, wire);

	return event && !client_managed_any() && !client_captures() &&
	       !atomic_load(&event->context->session->dead) && atomic_load(&event->context->sticky) == CUDA_SUCCESS &&
	       atomic_load(&event->context->late) == CUDA_SUCCESS && records_are_over(event);
}

/* ---- calls ---- */

static CUresult event_enter(CUevent event, uint64_t *wire)
{
	CUresult result = client_enter_any();

	return result == CUDA_SUCCESS ? client_event_wire(event, wire) : result;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
	const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
	struct wire_event_create request = { .flags = Flags };
	struct client_event *event;
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!phEvent || Flags & ~known)
		return CUDA_ERROR_INVALID_VALUE;
	if (Flags & CU_EVENT_INTERPROCESS && !(Flags & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_VALUE;
	event = calloc(1, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->context = client_context_current();
	event->flags = Flags;
	if (handle_open(&farbus_client.handles, HANDLE_EVENT, event, &request.event)) {
		free(event);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	event->handle = (CUevent)(uintptr_t)request.event;
	result = client_post(WIRE_OP_EVENT_CREATE, &request, sizeof(request), NULL, 0);
	if (result != CUDA_SUCCESS) {
		handle_close(&farbus_client.handles, HANDLE_EVENT, request.event);
		free(event);
		return result;
	}
	*phEvent = event->handle;
	return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
	struct wire_event_record request = { .flags = flags };
	CUresult result = client_stream_enter(hStream, &request.stream);
	struct client_event *event;
	uint64_t before;
	bool captured;

	if (result == CUDA_SUCCESS && flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	request.event = (uint64_t)(uintptr_t)hEvent;
	event = handle_get(&farbus_client.handles, HANDLE_EVENT, request.event);
	if (!event || event->context != client_stream_context(request.stream))
		return CUDA_ERROR_INVALID_HANDLE;
	captured = client_stream_captured(request.stream);
	if (flags & CU_EVENT_RECORD_EXTERNAL && !captured)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & CU_EVENT_RECORD_EXTERNAL)
		client_event_recorded_elsewhere(request.event);
	before = record_begin(event);
	result = client_post_work(WIRE_OP_EVENT_RECORD, &request, sizeof(request), NULL, 0);
	event = handle_get(&farbus_client.handles, HANDLE_EVENT, request.event);
	if (!event)
		return result;
	/* In a capture nothing is recorded. */
	record_end(event, before, request.stream,
		   result == CUDA_SUCCESS && !captured &&
			   !client_stream_is_ambiguous(event->context, client_route_current().context, request.stream));
	if (result != CUDA_SUCCESS)
		return result;
	/* Another process may be told of it by other ways as soon as this returns, and wait for
	 * it then: it must not find it as it was before. */
	if (event->flags & CU_EVENT_INTERPROCESS && !captured) {
		const struct wire_event_query query = { .event = request.event };

		result = client_call(WIRE_OP_EVENT_QUERY, &query, sizeof(query), NULL, 0);
		if (result == CUDA_ERROR_NOT_READY)
			result = CUDA_SUCCESS;
	}
	return result;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
	return cuEventRecordWithFlags(hEvent, hStream, CU_EVENT_RECORD_DEFAULT);
}

CUresult cuEventQuery(CUevent hEvent)
{
	struct wire_event_query request;
	CUresult result = event_enter(hEvent, &request.event);

	if (result != CUDA_SUCCESS || is_over(request.event))
		return result;
	return client_call(WIRE_OP_EVENT_QUERY, &request, sizeof(request), NULL, 0);
}

CUresult cuEventSynchronize(CUevent hEvent)
{
	struct wire_event_synchronize request;
	CUresult result = event_enter(hEvent, &request.event);

	if (result != CUDA_SUCCESS || is_over(request.event))
		return result;
	return client_call(WIRE_OP_EVENT_SYNCHRONIZE, &request, sizeof(request), NULL, 0);
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
	const struct wire_event_destroy request = { .event = (uint64_t)(uintptr_t)hEvent };
	CUresult result = client_enter_any(), sticky;
	const struct client_event *event;

	if (result != CUDA_SUCCESS)
		return result;
	event = handle_get(&farbus_client.handles, HANDLE_EVENT, request.event);
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	sticky = atomic_load(&event->context->sticky);
	result = client_post(WIRE_OP_EVENT_DESTROY, &request, sizeof(request), NULL, 0);
	free(handle_close(&farbus_client.handles, HANDLE_EVENT, request.event));
	return result == CUDA_SUCCESS ? sticky : result;
}
