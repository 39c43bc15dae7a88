/* See carrier.h. */
#include "../ground/thread.h"
#include "../sockets/socket.h"
#include "carrier.h"

#include <errno.h>

/* How long a new connection waits for who sleeps on the one before, which is shut down.  It takes
 * microseconds, unless the thread is in a signal handler that itself waits for this connection;
 * it then notices the new one when it looks next (TRANSPORT_LOOK_MS). */
#define AWAKE_NS 1000000000u
/* Between attempts to connect: the first at once, then from 20 ms twice as long each time. */
#define PAUSE_MIN_MS 20
#define PAUSE_MAX_MS 2000

static void over_locked(struct carrier *carrier, int error)
{
	if (carrier_is_over(carrier))
		return;
	carrier->error = error;
	atomic_store(&carrier->state, CARRIER_OVER);
	carrier->connection->ops->shutdown(carrier->connection);
	pthread_cond_broadcast(&carrier->changed);
}

void carrier_over(struct carrier *carrier, int error)
{
	pthread_mutex_lock(&carrier->lock);
	over_locked(carrier, error);
	pthread_mutex_unlock(&carrier->lock);
}

void carrier_end_begin(struct carrier *carrier)
{
	pthread_mutex_lock(&carrier->lock);
	carrier->ending = true;
	pthread_mutex_unlock(&carrier->lock);
}

/* One attempt, without the lock. */
static int dial_once(struct carrier *carrier, uint64_t deadline_ns)
{
	uint64_t now = transport_now_ns();

	if (now >= deadline_ns)
		return -ETIMEDOUT;
	return carrier->dial(carrier->opaque, (int)((deadline_ns - now) / 1000000u) + 1);
}

static void *dial_thread(void *opaque)
{
	struct carrier *carrier = opaque;
	uint64_t pause_ms = 0;

	pthread_mutex_lock(&carrier->lock);
	while (atomic_load(&carrier->state) == CARRIER_CUT) {
		uint64_t until_ns = transport_now_ns() + pause_ms * 1000000u, deadline_ns = carrier->deadline_ns;
		int rc = 0;

		if (until_ns > deadline_ns)
			until_ns = deadline_ns;
		while (pause_ms && atomic_load(&carrier->state) == CARRIER_CUT && !rc)
			rc = transport_cond_wait_until(&carrier->changed, &carrier->lock, until_ns);
		if (atomic_load(&carrier->state) != CARRIER_CUT)
			break;
		deadline_ns = carrier->deadline_ns;
		pthread_mutex_unlock(&carrier->lock);
		rc = dial_once(carrier, deadline_ns);
		pause_ms = rc ? pause_ms * 2 : 0;
		if (rc && pause_ms < PAUSE_MIN_MS)
			pause_ms = PAUSE_MIN_MS;
		if (pause_ms > PAUSE_MAX_MS)
			pause_ms = PAUSE_MAX_MS;
		if (rc && rc != -EAGAIN)
			carrier_over(carrier, rc);
		pthread_mutex_lock(&carrier->lock);
	}
	carrier->dialling = false;
	pthread_mutex_unlock(&carrier->lock);
	return NULL;
}

void carrier_cut_locked(struct carrier *carrier, int error)
{
	bool closed = error == -EPIPE || error == -ECONNRESET;
	uint32_t grace_ms = closed ? carrier->closed_grace_ms : carrier->grace_ms;

	if (!carrier_is_up(carrier))
		return;
	if (carrier->ending) {
		over_locked(carrier, -EPIPE);
		return;
	}
	atomic_store(&carrier->state, CARRIER_CUT);
	carrier->deadline_ns = transport_now_ns() + (uint64_t)grace_ms * 1000000u;
	/* Whoever writes or sleeps finds out. */
	carrier->connection->ops->shutdown(carrier->connection);
	if (carrier->dial && !carrier->dialling) {
		int rc = transport_thread_start(NULL, dial_thread, carrier);

		carrier->dialling = !rc;
		if (rc)
			over_locked(carrier, rc);
	}
	pthread_cond_broadcast(&carrier->changed);
}

void carrier_cut(struct carrier *carrier, uint64_t generation, int error)
{
	pthread_mutex_lock(&carrier->lock);
	if (atomic_load(&carrier->generation) == generation)
		carrier_cut_locked(carrier, error);
	pthread_mutex_unlock(&carrier->lock);
}

void carrier_up_locked(struct carrier *carrier)
{
	atomic_fetch_add(&carrier->generation, 1);
	atomic_store(&carrier->state, CARRIER_UP);
	pthread_cond_broadcast(&carrier->changed);
}

int carrier_await(struct carrier *carrier, int timeout_ms)
{
	uint64_t end = transport_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;
	int cancel = transport_cancel_disable(), rc = 0;

	pthread_mutex_lock(&carrier->lock);
	while (atomic_load(&carrier->state) == CARRIER_CUT && !rc) {
		uint64_t until_ns = carrier->deadline_ns, now = transport_now_ns();

		if (now >= until_ns) {
			over_locked(carrier, -ETIMEDOUT);
			break;
		}
		if (timeout_ms >= 0 && now >= end) {
			rc = -ETIMEDOUT;
			break;
		}
		if (timeout_ms >= 0 && end < until_ns)
			until_ns = end;
		(void)transport_cond_wait_until(&carrier->changed, &carrier->lock, until_ns);
	}
	if (carrier_is_over(carrier))
		rc = carrier->error;
	pthread_mutex_unlock(&carrier->lock);
	transport_cancel_restore(cancel);
	return rc;
}

void carrier_sleep_begin(struct carrier *carrier)
{
	atomic_fetch_add(&carrier->sleepers, 1);
}

void carrier_sleep_end(struct carrier *carrier)
{
	if (atomic_fetch_sub(&carrier->sleepers, 1) != 1 || carrier_is_up(carrier))
		return;
	pthread_mutex_lock(&carrier->lock);
	pthread_cond_broadcast(&carrier->changed);
	pthread_mutex_unlock(&carrier->lock);
}

void carrier_sleepers_await(struct carrier *carrier)
{
	uint64_t until_ns = transport_now_ns() + AWAKE_NS;
	int rc = 0;

	while (!rc && atomic_load(&carrier->sleepers) && atomic_load(&carrier->state) == CARRIER_CUT)
		rc = transport_cond_wait_until(&carrier->changed, &carrier->lock, until_ns);
}

void carrier_init(struct carrier *carrier)
{
	pthread_mutex_init(&carrier->lock, NULL);
	transport_cond_init(&carrier->changed);
	atomic_store(&carrier->state, CARRIER_UP);
}
