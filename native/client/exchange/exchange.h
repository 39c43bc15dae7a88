/* exchange.h - what requests (exchange.c), their ways (route.c), answers (receive.c) and what is still to come
 * (outstanding.c) have in common. */
#ifndef FARBUS_CLIENT_EXCHANGE_H
#define FARBUS_CLIENT_EXCHANGE_H

#include "../../transport/ground/futex.h"
#include "../managed/managed.h"

/* ---- the session's lists of who waits for what ---- */

static inline void wait_lock(struct client_session *session)
{
	client_guard_begin();
	pthread_mutex_lock(&session->wait_lock);
}

static inline void wait_unlock(struct client_session *session)
{
	pthread_mutex_unlock(&session->wait_lock);
	client_guard_end();
}

static inline void wait_set(struct client_session *session, struct client_wait *wait, uint32_t state)
{
	/* The leader does not sleep on its own wait; and once it is done it may
	 * be gone, so look before. */
	bool asleep = wait != session->leader_wait;

	atomic_store(&wait->state, state);
	if (asleep)
		futex_wake(&wait->state);
}

/* Callers have used it at that time: the receiver thread leaves them the inbox for a while. */
static inline void session_used(struct client_session *session, uint64_t when_ns)
{
	atomic_store_explicit(&session->used_ns, when_ns, memory_order_relaxed);
}

/* Does the receiver thread alone read, as pages of managed memory come when they are touched? */
static inline bool paging(void)
{
	return atomic_load_explicit(&farbus_client.paging, memory_order_relaxed);
}

/* ---- outstanding.c ---- */

void client_outstanding(struct client_session *session, int change);
/* Gates that nothing is paced behind. */
void client_awaited(struct client_session *session, int change);
/* Does the server owe bytes of an asynchronous copy whose first byte lies in [at, at + bytes)? */
bool client_target_owed(struct client_session *session, const uint8_t *at, size_t bytes);
/* Is anything of the range still to be written by this process, with bytes that come?  The
 * server's own copies would not wait for that. */
bool client_target_pending(struct client_session *session, uint64_t base, size_t span);
/* The server will send something by itself; with the wait lock. */
void client_receiver_expects(struct client_session *session);
/* Free what is finished of asynchronous copies; by a thread that posts. */
void client_targets_free(struct client_session *session);

/* ---- failure.c ---- */

/* Remember what ends a context; what it was given. */
CUresult client_context_note(CUcontext handle, CUresult result);
/* What was refused of what was posted in a context: told once. */
CUresult client_context_late(CUcontext handle);
/* Give up what is waited for; wait_lock is held.  Only the leader may, or anybody where
 * there is none: who reads may be writing to a waiter's memory, which is the waiter's
 * stack and is gone once it is told. */
void client_session_abandon(struct client_session *session);

/* ---- receive.c ---- */

/* Until the answer has come to `wait`, which is registered and whose request has left. */
void client_wait_for(struct client_session *session, struct client_wait *wait);
/* Ask for the legacy stream of the route's context: the answer comes behind all that was sent before, and an error that
 * has ended the context is noted. */
void client_query_legacy(const struct client_route *route);

/* ---- route.c ---- */

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
