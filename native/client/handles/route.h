/* route.h - what servers name, and where a request goes (route.c). */
#ifndef FARBUS_CLIENT_ROUTE_H
#define FARBUS_CLIENT_ROUTE_H

#include "../ground/thread.h"

/* ---- what servers name ----
 *
 * Graphs, arrays, pools and their like: a program gets the server's name with the session's
 * index in it, so that names of two servers differ. */

/* The name for the program; 0 stays 0. */
static inline uint64_t client_named_take(const struct client_session *session, uint64_t wire)
{
	return wire ? wire | session->index : 0;
}

/* The server's name, and whose it is; what no server can have named stays as it is, and
 * is the current context's server's to refuse. */
uint64_t client_named_wire(const void *name, struct client_session **session);

/* ---- where a request goes ---- */

struct client_request {
	enum wire_op op;
	const void *fixed;
	size_t fixed_bytes;
	const void *tail;
	size_t tail_bytes;
};

/* Where a request goes, and the context that it is made in: its handle, or 0.  `own`: by the lane of the shim's own, if the
 * server knows of it (WIRE_LANE_OWN): it is executed before what others have posted and the server has not begun with. */
struct client_route {
	struct client_session *session;
	uint64_t context;
	bool own;
};

/* The current context's, or the first server's that is there. */
struct client_route client_route_current(void);
/* Is it alive, and not the current one? */
bool client_context_elsewhere(const struct client_context *context);
/* An object's of that context: of the current one, if that is of the same server. */
struct client_route client_route_context(const struct client_context *context);
/* That context's, whichever the current one is: its streams are no other one's. */
static inline struct client_route client_route_made_in(const struct client_context *context, bool own)
{
	return (struct client_route){
		.session = context->session,
		.context = (uint64_t)(uintptr_t)context->handle,
		.own = own,
	};
}
/* A stream's: of its own context. */
struct client_route client_route_stream(uint64_t stream);
/* A primary context at that server; NULL: none is active. */
struct client_context *client_session_context(const struct client_session *session);
/* Something of that server's that no context has. */
struct client_route client_route_session(struct client_session *session);
struct client_session *client_stream_session(uint64_t stream);

/* The current context on the wire, or 0. */
static inline uint64_t context_wire(void)
{
	const struct client_thread *thread = client_thread();

	return thread->depth ? (uint64_t)(uintptr_t)thread->contexts[thread->depth - 1] : 0;
}

/* The context that an operation is of, if that is not the current one; NULL: it is. */
const struct client_context *client_context_claimed(enum wire_op op, const void *fixed);
CUresult client_route_claimed(enum wire_op op, const void *fixed, struct client_route *route);

/* Where a request goes whose fixed part is `fixed`.  CUDA_ERROR_INVALID_HANDLE: it names objects of two servers. */
static inline CUresult client_route_find(enum wire_op op, const void *fixed, struct client_route *route)
{
	if (!client_alone())
		return client_route_claimed(op, fixed, route);
	route->session = farbus_client.sessions;
	route->context = context_wire();
	route->own = false;
	if (!route->context || atomic_load_explicit(&farbus_client.several, memory_order_relaxed)) {
		const struct client_context *claimed = client_context_claimed(op, fixed);

		if (claimed)
			route->context = (uint64_t)(uintptr_t)claimed->handle;
	}
	return CUDA_SUCCESS;
}

#endif
