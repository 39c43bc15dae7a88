/* Events as handles, and what is known of them without asking.
 *
 * Records of a context are counted.  A call that waited for a stream, or was told that it is idle, has all of its
 * records that were counted before that call: such an event is over until it is recorded again, and whoever asks for it, as
 * allocators of pinned memory do at each step, is answered here.
 */
#include "../ground/thread.h"
#include "events.h"
#include "route.h"

struct client_context *client_event_context(uint64_t wire)
{
	const struct client_event *event = handle_get(&farbus_client.handles, HANDLE_EVENT, wire);

	return event ? event->context : NULL;
}

CUresult client_event_wire(CUevent event, uint64_t *wire)
{
	if (!handle_get(&farbus_client.handles, HANDLE_EVENT, (uint64_t)(uintptr_t)event))
		return CUDA_ERROR_INVALID_HANDLE;
	*wire = (uint64_t)(uintptr_t)event;
	return CUDA_SUCCESS;
}

void client_events_forget(struct client_context *context)
{
	pthread_mutex_lock(&context->events.lock);
	context->events.ended = context->events.recorded;
	pthread_mutex_unlock(&context->events.lock);
}

void client_event_recorded_elsewhere(uint64_t wire)
{
	struct client_event *event = handle_get(&farbus_client.handles, HANDLE_EVENT, wire);

	if (!event)
		return;
	pthread_mutex_lock(&event->context->events.lock);
	event->elsewhere = true;
	pthread_mutex_unlock(&event->context->events.lock);
}

struct client_waited client_events_before(const struct client_route *route, const struct client_request *request)
{
	struct client_waited waited = { 0 };
	const struct client_event *event = NULL;
	struct client_context *context;

	/* That lane goes past the records of others. */
	if (route->own)
		return waited;
	switch (request->op) {
	case WIRE_OP_STREAM_SYNCHRONIZE:
	case WIRE_OP_STREAM_REACH:
		_Static_assert(sizeof(struct wire_stream_synchronize) == sizeof(struct wire_stream_reach), "the same field");
		waited.stream = ((const struct wire_stream_synchronize *)request->fixed)->stream;
		break;
	case WIRE_OP_STREAM_QUERY:
		waited.stream = ((const struct wire_stream_query *)request->fixed)->stream;
		break;
	case WIRE_OP_COPY_TO_HOST:
		waited.stream = ((const struct wire_copy_to_host *)request->fixed)->stream;
		break;
	case WIRE_OP_EVENT_QUERY:
		event = handle_get(&farbus_client.handles, HANDLE_EVENT,
				   ((const struct wire_event_query *)request->fixed)->event);
		break;
	case WIRE_OP_EVENT_SYNCHRONIZE:
		event = handle_get(&farbus_client.handles, HANDLE_EVENT,
				   ((const struct wire_event_synchronize *)request->fixed)->event);
		break;
	case WIRE_OP_CONTEXT_SYNCHRONIZE:
		waited.all = true;
		break;
	default:
		return waited;
	}
	context = event ? event->context : client_context_get((CUcontext)(uintptr_t)route->context);
	/* A green one waits for its own streams alone. */
	if (!context || (!event && (waited.all ? client_handle_is_green(context, route->context)
					       : client_stream_is_ambiguous(context, route->context, waited.stream))))
		return waited;
	pthread_mutex_lock(&context->events.lock);
	waited.number = context->events.recorded;
	if (event) {
		waited.event = (uint64_t)(uintptr_t)event->handle;
		waited.record = event->number;
		waited.stream = event->stream;
		waited.number = event->elsewhere || !event->number ? 0 : event->behind;
	}
	pthread_mutex_unlock(&context->events.lock);
	waited.context = context->handle;
	return waited;
}

void client_events_over(const struct client_waited *waited)
{
	/* It may have ended meanwhile. */
	struct client_context *context = client_context_get(waited->context);
	const struct client_event *event = NULL;
	struct client_settled *settled;
	struct client_events *events;

	if (waited->event)
		event = handle_get(&farbus_client.handles, HANDLE_EVENT, waited->event);
	if (!context || (waited->event && !event))
		return;
	events = &context->events;
	settled = client_settled_of(context, waited->stream);
	pthread_mutex_lock(&events->lock);
	/* What was waited for may have been another record than was known. */
	if (event && event->number != waited->record) {
		pthread_mutex_unlock(&events->lock);
		return;
	}
	if (waited->all) {
		if (events->settled_all < waited->number)
			events->settled_all = waited->number;
	} else if (settled->stream != waited->stream || settled->number < waited->number) {
		settled->stream = waited->stream;
		settled->number = waited->number;
	}
	pthread_mutex_unlock(&events->lock);
}
