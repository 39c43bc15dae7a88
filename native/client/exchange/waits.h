/* waits.h - the session's lists of who waits for what. */
#ifndef FARBUS_CLIENT_WAITS_H
#define FARBUS_CLIENT_WAITS_H

#include "../../transport/ground/futex.h"
#include "../ground/thread.h"

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

#endif
