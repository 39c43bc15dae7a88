#include "../ground/processors.h"
#include "inbox.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

int inbox_init(struct inbox *inbox, struct transport *transport)
{
	inbox->buffer = malloc(INBOX_BYTES);
	if (!inbox->buffer)
		return -ENOMEM;
	inbox->transport = transport;
	inbox->meter = NULL;
	inbox->start = 0;
	inbox->end = 0;
	inbox->large = false;
	inbox->spin_ns = INBOX_SPIN_MAX_NS / 2;
	inbox->patience_ns = 0;
	inbox->hurries = 0;
	inbox->hurries_again = INBOX_HURRIES_LEAST;
	inbox->missed = 0;
	inbox->sleeps = 0;
	inbox->waited_ns = 0;
	inbox->parts = false;
	inbox->beside = 0;
	inbox->leaves = false;
	inbox->part_again_ns = 0;
	inbox->part_pause_ns = INBOX_PART_MIN_NS;
	return 0;
}

void inbox_release(struct inbox *inbox)
{
	free(inbox->buffer);
	inbox->buffer = NULL;
}

/* How long to spin next time: as long as it pays.  A wait that spinning would have
 * covered makes it longer, also when this one slept, or the peer did, which took wake-ups besides; a longer
 * wait makes it shorter, but little: on a busy machine many are long only because another
 * process ran meanwhile. */
static void inbox_adapt(struct inbox *inbox, uint64_t waited_ns, bool slept)
{
	struct transport *transport = inbox->transport;
	uint64_t wake_ups_ns = slept ? INBOX_WAKE_NS : 0;

	if (transport->ops->woken)
		wake_ups_ns = transport->ops->woken(transport);
	if (waited_ns < INBOX_SPIN_MAX_NS + wake_ups_ns)
		inbox->spin_ns += inbox->spin_ns / 2;
	else
		inbox->spin_ns -= inbox->spin_ns / 32;
	if (inbox->spin_ns > INBOX_SPIN_MAX_NS)
		inbox->spin_ns = INBOX_SPIN_MAX_NS;
	if (inbox->spin_ns < INBOX_SPIN_MIN_NS)
		inbox->spin_ns = INBOX_SPIN_MIN_NS;
}

void inbox_busy_until(struct inbox_meter *meter, uint64_t now)
{
	uint64_t from;

	if (!meter->woken_ns || atomic_load_explicit(&meter->elsewhere, memory_order_acquire))
		return;
	from = atomic_load_explicit(&meter->counted_ns, memory_order_relaxed);
	if (from < meter->woken_ns)
		from = meter->woken_ns;
	if (now > from)
		atomic_fetch_add_explicit(meter->busy_ns, now - from, memory_order_relaxed);
}

static void inbox_count(struct inbox_meter *meter, ssize_t got)
{
	uint64_t before;

	if (!meter || got <= 0)
		return;
	before = atomic_load_explicit(meter->received_bytes, memory_order_relaxed);
	atomic_store_explicit(meter->received_bytes, before + (uint64_t)got,
			      memory_order_relaxed);
}

/* A spin kept the peer from the processor that both share. */
static void inbox_missed(struct inbox *inbox)
{
	if (++inbox->missed < INBOX_MISSED_MOST)
		return;
	inbox->missed -= INBOX_MISSED_AGAIN;
	inbox->sleeps = INBOX_SLEEPS;
}

/* Have this thread go on elsewhere than on this processor, which it may come back to. */
static void inbox_leave_processor(void)
{
	cpu_set_t allowed, others;
	int here = sched_getcpu();

	/* Fails on machines with more processors than the set has: there it is not needed either. */
	if (here < 0 || here >= CPU_SETSIZE || sched_getaffinity(0, sizeof(allowed), &allowed))
		return;
	others = allowed;
	CPU_CLR(here, &others);
	if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof(others), &others))
		sched_setaffinity(0, sizeof(allowed), &allowed);
}

/* A wait ended, after sleep or not, and it has shown that both share a processor, or not. */
static void inbox_part(struct inbox *inbox, uint64_t now, bool slept, bool shared)
{
	struct transport *transport = inbox->transport;

	if (!inbox->parts)
		return;
	if (slept && transport->ops->beside)
		shared = transport->ops->beside(transport);
	/* Who has slept without spinning has seen nothing that the transport does not tell. */
	else if (slept && !shared)
		return;
	if (!slept || !shared) {
		inbox->beside = 0;
		inbox->part_pause_ns = INBOX_PART_MIN_NS;
		return;
	}
	inbox->leaves = ++inbox->beside >= INBOX_BESIDE && now >= inbox->part_again_ns;
	if (!inbox->leaves)
		return;
	inbox->beside = 0;
	inbox->part_again_ns = now + inbox->part_pause_ns;
	if (inbox->part_pause_ns < INBOX_PART_MAX_NS)
		inbox->part_pause_ns *= 2;
}

/* A payload, which is not to pass through the buffer; what follows it may begin there. */
static ssize_t inbox_scatter(struct inbox *inbox, void *target, size_t bytes)
{
	struct transport *transport = inbox->transport;
	ssize_t got = transport->ops->scatter(transport, target, bytes, inbox->buffer, INBOX_AHEAD_BYTES);

	inbox->start = inbox->end = 0;
	if (got <= (ssize_t)bytes)
		return got;
	inbox->end = (size_t)got - bytes;
	inbox_count(inbox->meter, (ssize_t)inbox->end);
	return (ssize_t)bytes;
}

static ssize_t inbox_try(struct inbox *inbox, void *target, size_t bytes)
{
	struct transport *transport = inbox->transport;
	uint8_t *at = target;

	if (!target)
		return transport->ops->peek(transport, &inbox->peeked, bytes);
	if (transport->ops->scatter && (at < inbox->buffer || at >= inbox->buffer + INBOX_BYTES))
		return inbox_scatter(inbox, target, bytes);
	return transport->ops->read(transport, target, bytes);
}

/* Is this one of the waits that do not spin?  Not where the peer is known to have gone to another processor:
 * two that sleep in turn on one are never both ready to run, so that the scheduler would see no
 * reason to part them, and when it did, calls would still cost two wake-ups each. */
static bool inbox_sleeps(struct inbox *inbox)
{
	struct transport *transport = inbox->transport;

	if (!inbox->sleeps)
		return false;
	inbox->sleeps--;
	return !transport->ops->apart || !transport->ops->apart(transport);
}

bool inbox_has_processors(void)
{
	return transport_processors() >= INBOX_PATIENCE_PROCESSORS;
}

/* How often this thread was taken off its processor for another. */
static long inbox_wanted(void)
{
	struct rusage usage;

	return getrusage(RUSAGE_THREAD, &usage) ? -1 : usage.ru_nivcsw;
}

/* Somebody has wanted it, and got it late. */
static void inbox_hurry(struct inbox *inbox)
{
	inbox->hurries = inbox->hurries_again;
	if (inbox->hurries_again < INBOX_HURRIES_MOST)
		inbox->hurries_again *= 2;
}

static bool inbox_is_patient(struct inbox *inbox, uint64_t spun_ns)
{
	if (inbox->patience_ns <= spun_ns)
		return false;
	if (!inbox->hurries)
		return true;
	inbox->hurries--;
	return false;
}

/* Go on spinning while nobody else wants the processor. */
static ssize_t inbox_spin_on(struct inbox *inbox, void *target, size_t bytes, uint64_t start, uint64_t *now)
{
	uint64_t asked = *now;
	long wanted = inbox_wanted();
	ssize_t got;

	do {
		transport_relax();
		got = inbox_try(inbox, target, bytes);
		*now = transport_now_ns();
		if (*now - asked >= INBOX_WANTED_NS) {
			if (inbox_wanted() != wanted) {
				inbox_hurry(inbox);
				return got;
			}
			asked = *now;
		}
	} while (got == -EAGAIN && *now - start < inbox->patience_ns);
	inbox->hurries_again = INBOX_HURRIES_LEAST;
	return got;
}

/* Read at least one byte into [target, target + bytes), or only find it if there is no
 * target: spin a while, then sleep. */
static ssize_t inbox_read(struct inbox *inbox, void *target, size_t bytes, int timeout_ms)
{
	struct transport *transport = inbox->transport;
	ssize_t got = inbox_try(inbox, target, bytes);
	uint64_t start, now;
	bool slept = false, shared = false;

	if (got != -EAGAIN) {
		inbox->waited_ns = 0;
		inbox_count(inbox->meter, got);
		return got;
	}
	start = now = transport_now_ns();
	/* All there was is read: busy since it woke. */
	if (inbox->meter) {
		inbox_busy_until(inbox->meter, start);
		atomic_store_explicit(inbox->meter->reading_since_ns, 0, memory_order_relaxed);
	}
	if (inbox->leaves) {
		/* Now, when nothing waits for an answer. */
		inbox->leaves = false;
		inbox_leave_processor();
	}
	if (!inbox_sleeps(inbox)) {
		/* Two that sleep in turn would each give up just before the other, once awake, could have answered. */
		uint64_t spin_ns = inbox->spin_ns + (transport->ops->waking ? transport->ops->waking(transport) : 0);

		do {
			/* To read the clock takes as long as several looks; later it is a pause that
			 * leaves the core to the peer, where the two share one. */
			int looks = now - start < INBOX_EAGER_NS ? INBOX_LOOKS : 1;

			do {
				transport_relax();
				got = inbox_try(inbox, target, bytes);
			} while (got == -EAGAIN && --looks);
			now = transport_now_ns();
		} while (got == -EAGAIN && now - start < spin_ns);
		if (got == -EAGAIN && inbox_is_patient(inbox, spin_ns))
			got = inbox_spin_on(inbox, target, bytes, start, &now);
		if (got != -EAGAIN)
			inbox->missed = 0;
	}
	if (got == -EAGAIN) {
		uint64_t gave_up = now;

		slept = true;
		do {
			int rc = transport->ops->wait(transport, timeout_ms);

			if (rc)
				return rc;
			got = inbox_try(inbox, target, bytes);
		} while (got == -EAGAIN);
		now = transport_now_ns();
		shared = gave_up != start && now - gave_up <= INBOX_SHARED_NS;
		if (shared)
			inbox_missed(inbox);
	}
	inbox->waited_ns = now;
	inbox_adapt(inbox, now - start, slept);
	inbox_part(inbox, now, slept, shared);
	if (inbox->meter) {
		inbox->meter->woken_ns = now;
		atomic_store_explicit(inbox->meter->reading_since_ns, now, memory_order_relaxed);
	}
	inbox_count(inbox->meter, got);
	return got;
}

/* Have at least `bytes` (no more than the buffer holds) buffered. */
static int inbox_fill(struct inbox *inbox, size_t bytes, int timeout_ms)
{
	const struct transport_ops *ops = inbox->transport->ops;

	if (inbox->start == inbox->end) {
		inbox->start = 0;
		inbox->end = 0;
	} else if (INBOX_BYTES - inbox->start < bytes) {
		memmove(inbox->buffer, inbox->buffer + inbox->start, inbox->end - inbox->start);
		inbox->end -= inbox->start;
		inbox->start = 0;
	}
	while (inbox->end - inbox->start < bytes) {
		size_t most = INBOX_BYTES - inbox->end, missing = bytes - (inbox->end - inbox->start);
		ssize_t got;

		/* Where reading is no system call, a large payload is to lie where it is as a whole. */
		if (ops->peek && inbox->large)
			most = missing;
		else if ((ops->peek || inbox->large) && most > INBOX_AHEAD_BYTES)
			most = missing > INBOX_AHEAD_BYTES ? missing : INBOX_AHEAD_BYTES;
		got = inbox_read(inbox, inbox->buffer + inbox->end, most, timeout_ms);

		if (got < 0)
			return (int)got;
		inbox->end += (size_t)got;
	}
	return 0;
}

int inbox_header(struct inbox *inbox, struct wire_header *header, int timeout_ms)
{
	int rc = inbox_fill(inbox, sizeof(*header), timeout_ms);

	if (rc)
		return rc;
	memcpy(header, inbox->buffer + inbox->start, sizeof(*header));
	if (header->length > WIRE_FRAME_BYTES)
		return -EPROTO;
	inbox->start += sizeof(*header);
	if (header->length >= INBOX_LARGE_BYTES)
		inbox->large = INBOX_LARGE_AGAIN;
	else if (inbox->large)
		inbox->large--;
	return 0;
}

int inbox_take(struct inbox *inbox, void *target, size_t bytes)
{
	uint8_t *at = target;
	size_t buffered = inbox->end - inbox->start;
	size_t now = bytes < buffered ? bytes : buffered;
	size_t least = inbox->transport->ops->scatter || inbox->large ? INBOX_AHEAD_BYTES : INBOX_LARGE_BYTES;

	if (now) {
		memcpy(at, inbox->buffer + inbox->start, now);
		inbox->start += now;
		at += now;
		bytes -= now;
	}
	/* What is left and large bypasses the buffer; where the end of it can't bring along what
	 * follows, it comes through the buffer together with that, as small pieces do. */
	while (bytes >= least) {
		ssize_t got = inbox_read(inbox, at, bytes, -1);

		if (got < 0)
			return (int)got;
		at += got;
		bytes -= (size_t)got;
		least = inbox->transport->ops->scatter ? 1 : least;
	}
	if (bytes) {
		int rc = inbox_fill(inbox, bytes, -1);

		if (rc)
			return rc;
		memcpy(at, inbox->buffer + inbox->start, bytes);
		inbox->start += bytes;
	}
	return 0;
}

ssize_t inbox_peek(struct inbox *inbox, const void **at, size_t bytes)
{
	size_t buffered = inbox->end - inbox->start;
	ssize_t got;

	if (buffered) {
		*at = inbox->buffer + inbox->start;
		return (ssize_t)(bytes < buffered ? bytes : buffered);
	}
	got = inbox_read(inbox, NULL, bytes, -1);
	*at = inbox->peeked;
	return got;
}

void inbox_taken(struct inbox *inbox, size_t bytes)
{
	if (inbox_buffered(inbox))
		inbox->start += bytes;
	else
		inbox->transport->ops->taken(inbox->transport, bytes);
}

int inbox_skip(struct inbox *inbox, size_t bytes)
{
	uint8_t waste[4096];

	while (bytes) {
		size_t now = bytes < sizeof(waste) ? bytes : sizeof(waste);
		int rc = inbox_take(inbox, waste, now);

		if (rc)
			return rc;
		bytes -= now;
	}
	return 0;
}
