/* across.h - what a stream of one server needs of another: events (across.c). */
#ifndef FARBUS_CLIENT_ACROSS_H
#define FARBUS_CLIENT_ACROSS_H

#include "../client.h"

/* Not in a capture: each run of the graph would have to do it. */
CUresult client_across_permit(uint64_t stream, const char *what);

/* The server is gone: what waits for its events goes on. */
void client_across_lost(struct client_session *session);

#endif
