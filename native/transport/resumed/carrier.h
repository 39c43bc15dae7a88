/* carrier.h - is there a connection that carries a stream (resume.h), and may another one come?
 *
 *	CARRIER_UP	connected
 *	CARRIER_CUT	not: another connection may come until the grace time is over
 *	CARRIER_OVER	for ever: the grace time has passed, the peer has said so, or this side
 *
 * It goes from UP to CUT once for each connection, by whoever meets the error, and back by who has another one.  One that is cut is
 * shut down, so that whoever writes to it or sleeps on its descriptor finds out.  Where this side dials, a thread does that
 * while it is CUT.
 */
#ifndef FARBUS_TRANSPORT_CARRIER_H
#define FARBUS_TRANSPORT_CARRIER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../transport.h"

enum { CARRIER_UP, CARRIER_CUT, CARRIER_OVER };

struct carrier {
	/* Set before carrier_init. */
	struct transport *connection;	/* the one there is, or was */
	uint32_t grace_ms;		/* how long a cut may last; */
	uint32_t closed_grace_ms;	/* where the peer's machine has closed or reset the connection */
	/* One attempt to have another connection.  0, and it is UP again; -EAGAIN: try again, after a pause; anything else ends
	 * the stream.  NULL: connections are given. */
	int (*dial)(void *opaque, int left_ms);
	void *opaque;

	pthread_mutex_t lock;		/* over what follows, and over which connection it is */
	pthread_cond_t changed;
	_Atomic int state;
	_Atomic uint64_t generation;	/* of connections */
	int error;			/* of a stream that is over */
	uint64_t deadline_ns;		/* of one that is cut */
	bool dialling;			/* a thread is at it */
	bool ending;			/* this side is about to say the end, or the peer has: no cut matters any more */
	_Atomic unsigned sleepers;	/* in poll(2) on the descriptor */
};

/* UP, over the connection that there is. */
void carrier_init(struct carrier *carrier);

static inline bool carrier_is_up(struct carrier *carrier)
{
	return atomic_load(&carrier->state) == CARRIER_UP;
}

static inline bool carrier_is_over(struct carrier *carrier)
{
	return atomic_load(&carrier->state) == CARRIER_OVER;
}

/* An error was met on the connection of that generation; the same with the lock, of the one there is. */
void carrier_cut(struct carrier *carrier, uint64_t generation, int error);
void carrier_cut_locked(struct carrier *carrier, int error);
/* The stream has ended, with that error. */
void carrier_over(struct carrier *carrier, int error);
/* One side says the end, and may hang up before all know of it. */
void carrier_end_begin(struct carrier *carrier);
/* With the lock: another connection has taken the place of the one that was cut. */
void carrier_up_locked(struct carrier *carrier);

/* Wait while it is CUT.  0, -ETIMEDOUT (timeout_ms; -1: none), or the error that it is OVER with. */
int carrier_await(struct carrier *carrier, int timeout_ms);

/* Around sleeping on the descriptor, and before looking whether there is any need to: either the sleeper sees the cut, or
 * carrier_sleepers_await waits for it, with the lock, which it lets go meanwhile. */
void carrier_sleep_begin(struct carrier *carrier);
void carrier_sleep_end(struct carrier *carrier);
void carrier_sleepers_await(struct carrier *carrier);

#endif
