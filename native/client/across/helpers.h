/* helpers.h - streams of the shim's own, in which it does what one server needs of another (helpers.c). */
#ifndef FARBUS_CLIENT_HELPERS_H
#define FARBUS_CLIENT_HELPERS_H

#include "../handles/route.h"

/* A stream of this library's own in that context, for what must not wait for anything that
 * the program has put into its streams; given back when nothing is on its way in it. */
struct across_helper;
CUresult client_helper_take(struct client_context *context, struct across_helper **helper);
void client_helper_give(struct across_helper *helper);
uint64_t client_helper_wire(const struct across_helper *helper);
/* Its own context's, whatever is current to the thread.  Copies go by the shim's own lane: they wait for nothing that is
 * before them in the session, and what stands there may wait for them. */
struct client_route client_helper_route(const struct across_helper *helper);
CUresult client_helper_post(const struct across_helper *helper, enum wire_op op, const void *fixed,
			    size_t fixed_bytes, const void *tail, size_t tail_bytes);
CUresult client_helper_synchronize(const struct across_helper *helper);
/* The context's stream for copies, which is there when this returns; NULL for no context.  To be had before its server
 * waits for a copy. */
CUresult client_copier_take(struct client_context *context, struct across_helper **out);
void client_copier_give(struct across_helper *copier);
void client_helpers_forget(struct client_context *context);

#endif
