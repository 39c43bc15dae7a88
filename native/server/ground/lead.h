/* lead.h - which thread reads (lead.c). */
#ifndef FARBUS_SERVER_LEAD_H
#define FARBUS_SERVER_LEAD_H

#include "../server_ops.h"

/* One more thread that serves; 0 or -errno. */
int server_thread_start(struct server *server, void *(*run)(void *));
/* Let another thread read, which the caller has done. */
void server_lead_pass(struct server *server);
/* Let another thread lead, if this one still does: from here on the call may wait, and takes no
 * names away.  It holds its context. */
void server_pass(struct server_call *call);
/* Nobody finds the object any more: wait until nobody uses it.  May let go of the lead. */
void server_await_users(struct server_call *call, const void *object);
/* Is the thread that leads, which asks, the only one that is in the driver? */
bool server_is_alone(const struct server *server);

/* Is the frame of the client's own lane (WIRE_LANE_OWN)? */
static inline bool server_is_own(const struct server_call *call)
{
	return call->header.lane == WIRE_LANE_OWN && call->server->own_lane;
}

#endif
