/* inbox.h - frames out of a transport, one reader at a time.
 *
 * Small payloads are read through a buffer, so that many frames cost one
 * system call; large ones go from the transport to their destination.
 */
#ifndef FARBUS_TRANSPORT_INBOX_H
#define FARBUS_TRANSPORT_INBOX_H

#include <stdatomic.h>
#include <stdbool.h>

#include "../../wire/frame.h"
#include "../transport.h"

#define INBOX_BYTES (128u << 10)
/* How much is read ahead where a payload is likely to be behind, and more would save no system
 * call: payloads go where they belong, or stay where they lie. */
#define INBOX_AHEAD_BYTES (4u << 10)
/* Payloads from here on bypass the buffer. */
#define INBOX_LARGE_BYTES (INBOX_BYTES / 4)
/* Frames behind a large one of which one is likely to be large, too: what waits for a copy's end, and the
 * first of the next copy. */
#define INBOX_LARGE_AGAIN 2u

/* Where a reader counts, for others to look at meanwhile.  It alone adds to
 * *received_bytes, so that no addition needs a lock. */
struct inbox_meter {
	_Atomic uint64_t *received_bytes;
	_Atomic uint64_t *busy_ns;	/* time in which it did not wait for a byte */
	_Atomic uint64_t *reading_since_ns;	/* when the last wait ended; 0 while it waits */
	uint64_t woken_ns;		/* the same, also while it waits; 0: none has */
	_Atomic unsigned elsewhere;	/* others that are busy and count it, the reader's time with theirs */
	_Atomic uint64_t counted_ns;	/* until when they have counted it; set before `elsewhere` becomes 0 */
};

/* The reader has been busy until `now`: counted as far as nobody else has, or will.  By the reader alone. */
void inbox_busy_until(struct inbox_meter *meter, uint64_t now);

struct inbox {
	struct transport *transport;
	struct inbox_meter *meter;	/* NULL: nothing is counted */
	uint8_t *buffer;
	const void *peeked;		/* what inbox_peek found in the transport */
	size_t start;			/* of what is buffered and not yet taken */
	size_t end;
	unsigned large;			/* frames to come that may be, as one before them was */
	uint64_t spin_ns;		/* how long to spin before sleeping; adapts */
	uint64_t patience_ns;		/* how long to go on while nobody else wants the processor; the reader sets it */
	unsigned hurries;		/* waits to come that do not go on, though they might */
	unsigned hurries_again;		/* as many as that when somebody wants it the next time */
	uint64_t waited_ns;		/* when what was read last came; 0: it was there already */
	unsigned missed;		/* spins in turn that only kept the peer from running */
	unsigned sleeps;		/* waits to come that do not spin */
	bool parts;			/* may move its thread away from the peer's processor; false at first */
	unsigned beside;		/* waits in turn after which it woke there */
	bool leaves;			/* is moved before the next wait */
	uint64_t part_again_ns;		/* not to be moved before */
	uint64_t part_pause_ns;		/* and then not for so long */
};

/* Bounds of the spinning time.  A blocking wake-up costs some 50 us, a spinning
 * one about 10: spinning pays as long as replies come sooner than that.  The least is
 * what a spinning peer's reply takes: with less, two sides that both sleep would never
 * find out that they need not.  A wait that slept was measured with its wake-up, and with the peer's: without taking
 * those off, replies that come after 40 us would be slept for ever once they were slept for.  INBOX_WAKE_NS is for
 * transports that can't tell how long they take. */
#define INBOX_SPIN_MIN_NS 15000u
#define INBOX_SPIN_MAX_NS 60000u
#define INBOX_WAKE_NS 50000u
/* A processor that has slept for a while takes far longer to come back than one that has just fallen asleep: on a virtual
 * machine with a GPU what was waited for longer than the bound above took 70 to 200 us more than natively, where CUDA
 * spins.  Who waits for a device does so too, until all that is 2 % of the wait, if there are
 * processors for both sides, the driver and whatever else wants one; who waits for what the peer does next, as long as a
 * program of small operations takes from one to the next: longer would keep a processor of the GPU's machine busy for whoever
 * asks now and then. */
#define INBOX_PATIENCE_DEVICE_NS 10000000u
#define INBOX_PATIENCE_PEER_NS 250000u
#define INBOX_PATIENCE_PROCESSORS 4u
/* How often it looks whether another thread wanted its processor. */
#define INBOX_WANTED_NS 50000u
/* That shows only when the other has it, which had to wait for it until the scheduler took it away: milliseconds.  So behind
 * such a spin that many waits do not go on, and twice as many each time, until one has gone on and nobody came. */
#define INBOX_HURRIES_LEAST 16u
#define INBOX_HURRIES_MOST 1024u
/* Looks at the transport between two at the clock, while spinning for no longer than that. */
#define INBOX_LOOKS 8
#define INBOX_EAGER_NS 2000u
/* An answer that comes so soon after spinning was given up had waited for this processor:
 * the peer shares it.  The scheduler moves one of the two within milliseconds if another
 * processor is idle; after so many such waits none is, and the next ones sleep at once, which
 * costs two switches, before a few try again.  Giving way by sched_yield instead costs whole
 * time slices where a third process is ready to run. */
#define INBOX_SHARED_NS 20000u
#define INBOX_MISSED_MOST 64u
#define INBOX_MISSED_AGAIN 8u
#define INBOX_SLEEPS 1024u
/* After so many wake-ups in turn on the peer's processor the two are parted, if that is allowed: where the
 * scheduler finds the machine busy, which it is by their own spinning, it wakes one where the other is, and two
 * that sleep in turn give it no reason to part them.  Where that does not last, it is tried again after a pause that doubles. */
#define INBOX_BESIDE 2u
#define INBOX_PART_MIN_NS 2000000u
#define INBOX_PART_MAX_NS 1000000000u

int inbox_init(struct inbox *inbox, struct transport *transport);
void inbox_release(struct inbox *inbox);

/* The next header; its payload must be taken before the next call.  Waits at most
 * timeout_ms (-1: for ever).  0, -ETIMEDOUT, -EPIPE, -EPROTO (an impossible
 * length), -errno. */
int inbox_header(struct inbox *inbox, struct wire_header *header, int timeout_ms);

/* Take exactly `bytes` of the current payload. */
int inbox_take(struct inbox *inbox, void *target, size_t bytes);

/* Where the next of the current payload lies, at most `bytes`, at least one, and how many;
 * then inbox_taken with so many, before anything else.  The peer may change what lies in its
 * memory: for bytes that nobody here looks at.  Only where the transport can peek. */
ssize_t inbox_peek(struct inbox *inbox, const void **at, size_t bytes);
void inbox_taken(struct inbox *inbox, size_t bytes);

/* Take and drop. */
int inbox_skip(struct inbox *inbox, size_t bytes);

/* May waits here be patient?  As many processors as that takes are this thread's to use. */
bool inbox_has_processors(void);

/* Is there a byte that has been read and not taken? */
static inline int inbox_buffered(const struct inbox *inbox)
{
	return inbox->end > inbox->start;
}

#endif
