/* How far a program may post ahead of host functions: before the server's reader would have to wait. */
#include "../handles/route.h"
#include "exchange.h"
#include "jobs.h"
#include "pace.h"
#include "receive.h"
#include "waits.h"

#include "../../transport/ground/thread.h"

/* How long a handler of a signal waits for a thread that is held up by its host functions. */
#define PACE_ROUND_NS 10000000
/* How long host functions may hold up what is posted, before the server is asked whether their contexts have failed. */
#define PACE_PATIENCE_NS 1000000000
/* How many contexts are asked at a time. */
#define ASKED_CONTEXTS 8u

/* Have the server say which of the contexts that something is waited for in have failed. */
static void contexts_ask(struct client_session *session)
{
	CUcontext contexts[ASKED_CONTEXTS];
	unsigned count;

	/* A capture forbids it. */
	if (client_captures())
		return;
	count = client_jobs_contexts(session, contexts, ASKED_CONTEXTS);
	for (unsigned i = 0; i < count; i++) {
		const struct client_route route = { .session = session, .context = (uint64_t)(uintptr_t)contexts[i] };

		client_query_legacy(&route);
	}
}

/* With the wait lock.  That may take long, and signals must not be kept out for it; what is waited for may never come,
 * where its context has failed. */
static void settle_wait(struct client_session *session)
{
	uint64_t asked = transport_now_ns();

	while (session->outstanding && !atomic_load(&session->dead)) {
		uint64_t now = transport_now_ns();

		if (now - asked >= PACE_PATIENCE_NS) {
			wait_unlock(session);
			contexts_ask(session);
			wait_lock(session);
			asked = transport_now_ns();
			continue;
		}
		(void)transport_cond_wait_until(&session->settled, &session->wait_lock,
						client_paging() ? now + PACE_ROUND_NS : asked + PACE_PATIENCE_NS);
		if (client_paging()) {
			wait_unlock(session);
			wait_lock(session);
		}
	}
}

void client_stream_pace(uint64_t stream, unsigned weight, size_t pieces)
{
	struct client_session *session = client_alone() ? farbus_client.sessions
							 : client_stream_session(stream);
	unsigned *behind = &session->behind[(stream ^ stream >> 4) % CLIENT_BEHIND_SLOTS];
	int cancel;

	if (!atomic_load_explicit(&session->outstanding, memory_order_relaxed))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	wait_lock(session);
	*behind += weight;
	session->behind_pieces += pieces;
	if (session->outstanding && (*behind > CLIENT_BEHIND_LIMIT ||
				     session->behind_pieces > CLIENT_BEHIND_PIECES)) {
		/* What was posted so far must get there, or nothing ever settles. */
		wait_unlock(session);
		client_flush(session);
		wait_lock(session);
		settle_wait(session);
	}
	wait_unlock(session);
	pthread_setcancelstate(cancel, &cancel);
}
