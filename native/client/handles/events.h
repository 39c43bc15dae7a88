/* events.h - events as handles, and how far they are known to be over (events.c). */
#ifndef FARBUS_CLIENT_EVENTS_H
#define FARBUS_CLIENT_EVENTS_H

#include "../client.h"

/* Streams whose events are known of, by a hash: one displaces another. */
static inline struct client_settled *client_settled_of(struct client_context *context, uint64_t stream)
{
	return &context->events.settled[(stream ^ stream >> 4) % CLIENT_SETTLED_STREAMS];
}

/* Is that handle of a context the one of a green context? */
static inline bool client_handle_is_green(const struct client_context *context, uint64_t handle)
{
	return (uint64_t)(uintptr_t)context->handle != handle;
}

/* Streams of that name there are several: each thread's, and each green context's default stream. */
static inline bool client_stream_is_ambiguous(const struct client_context *context, uint64_t current, uint64_t stream)
{
	return stream == (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD ||
	       (stream == (uint64_t)(uintptr_t)CU_STREAM_LEGACY && client_handle_is_green(context, current));
}

/* What travels for a handle; the result that CUDA gives for a wrong one. */
CUresult client_event_wire(CUevent event, uint64_t *wire);
/* The context that it was made in; NULL: there is none. */
struct client_context *client_event_context(uint64_t event);
/* It has other records than those that the program asks for one by one: nothing is known of it any more. */
void client_event_recorded_elsewhere(uint64_t event);
/* What a call that waits says of events if it ends well: taken before it, and told behind it.  `number` 0: nothing. */
struct client_waited {
	CUcontext context;
	bool all;			/* streams, else this one's: */
	uint64_t stream;
	uint64_t number;		/* of the context's last record then */
	uint64_t event;			/* that was waited for, or 0; */
	uint64_t record;		/* the number of its record then */
};
struct client_waited client_events_before(const struct client_route *route,
					  const struct client_request *request);
void client_events_over(const struct client_waited *waited);
/* The context has ended: its events are nobody's. */
void client_events_forget(struct client_context *context);

#endif
