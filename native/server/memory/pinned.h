/* pinned.h - pinned memory that this process shares with the client (pinned.c). */
#ifndef FARBUS_SERVER_PINNED_H
#define FARBUS_SERVER_PINNED_H

#include "../server_ops.h"

/* A context is about to end, and with it what is pinned in it.  May wait for its work. */
void server_pinned_forget(struct server_call *call, struct server_context *context);

#endif
