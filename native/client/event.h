/* event.h - how far events are known to be over (event.c). */
#ifndef FARBUS_CLIENT_EVENT_H
#define FARBUS_CLIENT_EVENT_H

#include "client.h"

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
