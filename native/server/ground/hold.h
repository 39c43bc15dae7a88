/* hold.h - what calls use while others destroy it (hold.c). */
#ifndef FARBUS_SERVER_HOLD_H
#define FARBUS_SERVER_HOLD_H

#include "../server_ops.h"

/* Hold an object until the end of the call; a context, unless its end has begun, and whether it
 * has; the object of that name, held where it must be, or NULL; the end of the call. */
CUresult server_hold(struct server_call *call, const void *object);
CUresult server_hold_context(struct server_call *call, const struct server_context *context);
bool server_context_is_gone(struct server *server, const struct server_context *context);
void *server_find(struct server_call *call, enum handle_kind kind, uint64_t handle);
/* Give an object the client's name for it; SERVER_MALFORMED: that is not free, or no name. */
CUresult server_bind(struct server_call *call, enum handle_kind kind, uint64_t handle, void *object);
/* The same of streams and events, whose context is held as well and must not have ended; to name one; and
 * to take the name away, so that the driver may destroy it: not where it has already, with its context. */
CUresult server_find_placed(struct server_call *call, enum handle_kind kind, uint64_t handle, void **real);
CUresult server_place(struct server_call *call, enum handle_kind kind, uint64_t handle, void *real);
CUresult server_unplace(struct server_call *call, enum handle_kind kind, uint64_t handle, void **real);
/* Streams of a context that has ended: their names are free. */
void server_displace(struct server *server, const struct server_context *context);
void server_let_go(struct server_call *call);
/* Does another call hold it?  And wait until none does. */
bool server_others_hold(struct server_call *call, const void *object);
void server_await_others(struct server_call *call, const void *object);

#endif
