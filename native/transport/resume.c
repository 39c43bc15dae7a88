/* Two streams of bytes, one in each direction, over one connection after the other.
 *
 *	written		bytes that the writer was given			(out)
 *	sent		of those, how many this connection has had	(out)
 *	acknowledged	how many the peer's reader has taken		(in)
 *	consumed	bytes of the peer's that our reader has taken	(in)
 *	told		what of that the peer knows			(out)
 *
 *	acknowledged <= sent <= written <= acknowledged + window
 *
 * On the wire a stream is cut into records: a header of 8 bytes, and bytes of the stream.  Every
 * header acknowledges; a reader that has taken `acknowledge` bytes since the last one sends
 * a record without bytes.  What is not acknowledged stays (retained.h), where the window is.
 *
 * A writer without room in the window must hear of acknowledgements, and there may be nobody who
 * reads.  It then reads ahead, which takes at most the peer's window: both sides can always
 * take in all that the other may send, so that two writers never wait for each other.  One of the two
 * may take from the connection what the other sleeps for, and poll(2) then sleeps on: so each
 * sleeps on an eventfd(2) too, by which the other wakes it.
 *
 *	UP	connected
 *	CUT	not: who reads, waits; who writes goes on until the window is full
 *	OVER	for ever: the grace time has passed, the peer has said so, or this side
 *
 * A connection goes from UP to CUT once, by whoever meets the error; everything that follows
 * takes the place of the lower transport under all three locks.  Its descriptor keeps its number
 * (dup3(2)), so that nobody who is about to sleep on it ever meets a stranger's; and who does sleep
 * is woken first, since poll(2) would go on with the new connection without having heard of it.
 *
 * Locks, in the order in which they are taken: out > in > state_lock.
 */
#include "resume.h"
#include "bundle.h"
#include "clofork.h"
#include "retained.h"
#include "silence.h"
#include "sleeper.h"
#include "socket.h"
#include "thread.h"
#include "zerocopy.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

_Static_assert((RESUME_WINDOW_BYTES & (RESUME_WINDOW_BYTES - 1)) == 0 &&
		       (RESUME_WINDOW_FIRST & (RESUME_WINDOW_FIRST - 1)) == 0 &&
		       (RESUME_WINDOW_RING & (RESUME_WINDOW_RING - 1)) == 0 &&
		       (RESUME_WINDOW_MOST & (RESUME_WINDOW_MOST - 1)) == 0,
	       "offsets are masked");
/* Acknowledgements are so many to the least window that the peer may have: often enough that it
 * is never short of more than a part of it, rarely enough that they cost nothing beside
 * what they acknowledge, and that a copy of 1 MiB, whose successor's request acknowledges it, needs none. */
#define RESUME_ACKS 3u
/* The same to a window that begins with RESUME_WINDOW_RING: what comes in one call, and is to be made again where it was, is a
 * part of it. */
#define RESUME_PROMPT_ACKS 4u
/* From here on the bytes of a record are read to where they belong; less is read together
 * with what follows, and moved over the headers in between. */
#define RESUME_BULK_BYTES 4096u
/* Pieces of a record that go to the lower transport in one call. */
#define RESUME_PIECES 16
/* Memory for what is made in place and leaves at once, as much as the least window.  It is taken from the beginning each time, as
 * far as that is acknowledged: a ring goes round through all of its window, which a cache may not hold. */
#define RESUME_STAGING_BYTES RESUME_WINDOW_RING
/* How long a new connection waits for who sleeps on the one before, which is shut down.  It takes
 * microseconds, unless the thread is in a signal handler that itself waits for this connection;
 * it then notices the new one when it looks next (TRANSPORT_LOOK_MS). */
#define RESUME_AWAKE_NS 1000000000u
/* Between attempts to connect: the first at once, then from 20 ms twice as long each time. */
#define RESUME_PAUSE_MIN_MS 20
#define RESUME_PAUSE_MAX_MS 2000

struct record {
	uint32_t length;		/* of the bytes that follow, or RECORD_END */
	uint32_t acknowledged;		/* the lower half */
};
_Static_assert(sizeof(struct record) == 8, "wire layout");

/* The sender has ended the stream: nothing will be resumed. */
#define RECORD_END UINT32_MAX

enum { UP, CUT, OVER };

struct resume {
	struct transport lower;
	struct transport_ops ops;
	struct resume_options options;
	int descriptor;
	_Atomic int reading;		/* the descriptor from which the next byte comes */
	_Atomic int writing;		/* the one to which the next one goes; -1: the other tells of room, too */
	_Atomic bool buffers;		/* the lower transport holds bytes that the kernel has not */
	_Atomic bool hears;		/* the kernel tells of what it has sent (zerocopy.h) */

	size_t most;			/* bytes that a window of either side may ever have */
	size_t acknowledge;		/* read bytes that are worth a record */

	pthread_mutex_t out;
	struct retained kept;		/* of what is written; acknowledgements are of those who read */
	uint64_t sent;
	_Atomic uint64_t told;

	pthread_mutex_t in;
	_Atomic uint64_t consumed;
	struct record header;
	size_t header_bytes;		/* of it that have come */
	size_t record_left;		/* bytes of the record that have not */
	int failed;			/* what was met behind the bytes that were read, or 0 */
	uint8_t *ahead;			/* what was read ahead of who reads, or NULL */
	size_t ahead_start;
	_Atomic size_t ahead_bytes;

	_Atomic bool due;		/* an acknowledgement is */
	_Atomic bool bulk;		/* something large has passed */
	_Atomic bool wide;		/* the lower transport is, for who may not look at it */

	pthread_mutex_t state_lock;
	pthread_cond_t changed;
	_Atomic int state;
	_Atomic uint64_t generation;	/* of connections */
	int error;			/* of a stream that is over */
	uint64_t deadline_ns;		/* of one that is cut */
	bool dialling;			/* a thread is at it */
	bool ending;			/* this side is about to say the end, or the peer has: no cut matters any more */
	_Atomic unsigned sleepers;	/* in poll(2) on the descriptor */
	struct sleeper reader;		/* who reads, in poll(2) on the descriptor */
	struct sleeper writer;		/* who wants to write */
	struct silence silence;		/* of this connection */
};

/* ---- states ---- */

static bool is_up(struct resume *resume)
{
	return atomic_load(&resume->state) == UP;
}

/* state_lock is held. */
static void over_locked(struct resume *resume, int error)
{
	if (atomic_load(&resume->state) == OVER)
		return;
	resume->error = error;
	atomic_store(&resume->state, OVER);
	resume->lower.ops->shutdown(&resume->lower);
	pthread_cond_broadcast(&resume->changed);
}

static void over(struct resume *resume, int error)
{
	pthread_mutex_lock(&resume->state_lock);
	over_locked(resume, error);
	pthread_mutex_unlock(&resume->state_lock);
}

/* One side says the end, and may hang up before all know of it. */
static void end_begin(struct resume *resume)
{
	pthread_mutex_lock(&resume->state_lock);
	resume->ending = true;
	pthread_mutex_unlock(&resume->state_lock);
}

static void until_set(struct timespec *until, uint64_t ns)
{
	until->tv_sec = (time_t)(ns / 1000000000u);
	until->tv_nsec = (long)(ns % 1000000000u);
}

static void *dial_thread(void *opaque);

/* state_lock is held. */
static void cut_locked(struct resume *resume, int error)
{
	bool closed = error == -EPIPE || error == -ECONNRESET;
	uint32_t grace_ms = closed ? resume->options.closed_grace_ms : resume->options.grace_ms;

	if (!is_up(resume))
		return;
	if (resume->ending) {
		over_locked(resume, -EPIPE);
		return;
	}
	atomic_store(&resume->state, CUT);
	resume->deadline_ns = transport_now_ns() + (uint64_t)grace_ms * 1000000u;
	/* Whoever writes or sleeps finds out. */
	resume->lower.ops->shutdown(&resume->lower);
	if (resume->options.dial && !resume->dialling) {
		int rc = transport_thread_start(NULL, dial_thread, resume);

		resume->dialling = !rc;
		if (rc)
			over_locked(resume, rc);
	}
	pthread_cond_broadcast(&resume->changed);
}

/* An error was met on the connection of that generation. */
static void cut(struct resume *resume, uint64_t generation, int error)
{
	pthread_mutex_lock(&resume->state_lock);
	if (atomic_load(&resume->generation) == generation)
		cut_locked(resume, error);
	pthread_mutex_unlock(&resume->state_lock);
}

/* Wait while the stream is cut.  0, -ETIMEDOUT, or the error that it is over with. */
static int up_await(struct resume *resume, int timeout_ms)
{
	uint64_t end = transport_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;
	int cancel = transport_cancel_disable(), rc = 0;

	pthread_mutex_lock(&resume->state_lock);
	while (atomic_load(&resume->state) == CUT && !rc) {
		uint64_t until_ns = resume->deadline_ns, now = transport_now_ns();
		struct timespec until;

		if (now >= until_ns) {
			over_locked(resume, -ETIMEDOUT);
			break;
		}
		if (timeout_ms >= 0 && now >= end) {
			rc = -ETIMEDOUT;
			break;
		}
		if (timeout_ms >= 0 && end < until_ns)
			until_ns = end;
		until_set(&until, until_ns);
		pthread_cond_timedwait(&resume->changed, &resume->state_lock, &until);
	}
	if (atomic_load(&resume->state) == OVER)
		rc = resume->error;
	pthread_mutex_unlock(&resume->state_lock);
	transport_cancel_restore(cancel);
	return rc;
}

/* Is the network still there? */
static void look(struct resume *resume)
{
	int all[BUNDLE_CONNECTIONS] = { resume->descriptor };
	unsigned count = 1;

	pthread_mutex_lock(&resume->state_lock);
	if (is_up(resume) && silence_is_due(&resume->silence)) {
		if (resume->lower.bundle)
			count = transport_bundle_all(&resume->lower, all);
		if (silence_is_found(&resume->silence, all, count))
			cut_locked(resume, -ETIMEDOUT);
	}
	pthread_mutex_unlock(&resume->state_lock);
}

static void bulk_begin(struct resume *resume)
{
	if (resume->options.bulk && !atomic_load(&resume->bulk) && !atomic_exchange(&resume->bulk, true))
		resume->options.bulk(resume->options.opaque);
}

/* ---- writing; `out` is held ---- */

/* Send one record: of what was not sent, as much as goes at once, or nothing but its header.
 * false: the connection is cut. */
static bool record_send(struct resume *resume, bool bare)
{
	uint64_t consumed = atomic_load(&resume->consumed);
	uint64_t generation = atomic_load(&resume->generation);
	uint64_t at = resume->sent, end = atomic_load(&resume->kept.written);
	bool kept = !bare && resume->lower.ops->write_kept;
	struct iovec vector[1 + RESUME_PIECES];
	struct record record;
	int count = 1, rc;

	while (!bare && at < end && count <= RESUME_PIECES) {
		const uint8_t *from;
		size_t bytes = retained_piece(&resume->kept, at, (size_t)(end - at), &from);

		kept = kept && retained_keeps(&resume->kept, from);
		vector[count++] = (struct iovec){ .iov_base = (void *)from, .iov_len = bytes };
		at += bytes;
	}
	record.length = (uint32_t)(at - resume->sent);
	record.acknowledged = (uint32_t)consumed;
	vector[0] = (struct iovec){ .iov_base = &record, .iov_len = sizeof(record) };
	atomic_store(&resume->due, false);
	if (!bare)
		retained_round_begin(&resume->kept, record.length >= RESUME_BULK_BYTES, at);
	rc = (kept ? resume->lower.ops->write_kept : resume->lower.ops->write)(&resume->lower, vector, count);
	if (resume->lower.bundle)
		atomic_store(&resume->writing, transport_bundle_writing(&resume->lower));
	if (rc) {
		/* What was lent and is no memory would be none over the next connection; and what a peer has said that can't
		 * be is its word, and not the connection's. */
		if (rc == -EFAULT || rc == -EPROTO)
			over(resume, rc);
		cut(resume, generation, rc);
		return false;
	}
	resume->sent = at;
	atomic_store(&resume->told, consumed);
	return true;
}

/* Send what was not sent.  While the stream is cut it stays, and is no error. */
static int stream_flush(struct resume *resume)
{
	while (resume->sent < atomic_load(&resume->kept.written) && is_up(resume) &&
	       record_send(resume, false))
		;
	return atomic_load(&resume->state) == OVER ? -EPIPE : 0;
}

static bool lower_writable(struct resume *resume)
{
	struct pollfd on = { .fd = atomic_load(&resume->writing), .events = POLLOUT };

	if (resume->lower.ops->writable)
		return resume->lower.ops->writable(&resume->lower);
	/* Nor is it room what the kernel may have to say of what it has sent; of an end it tells as of room. */
	return transport_poll_all(&on, 1, 0) == 0 && on.revents & POLLOUT;
}

/* Acknowledge if that is due, and if nobody writes: who does, does it, here, afterwards.  It
 * never waits: a reader that waits for room may be what the peer's reader waits for. */
static void acknowledge(struct resume *resume)
{
	while (atomic_load(&resume->due) && is_up(resume) &&
	       pthread_mutex_trylock(&resume->out) == 0) {
		bool now = is_up(resume) && lower_writable(resume);

		if (now)
			(void)record_send(resume, true);
		pthread_mutex_unlock(&resume->out);
		if (!now)
			return;
	}
}

static void out_unlock(struct resume *resume)
{
	pthread_mutex_unlock(&resume->out);
	acknowledge(resume);
}

/* ---- reading; `in` is held ---- */

static int header_take(struct resume *resume)
{
	uint64_t before = atomic_load(&resume->kept.acknowledged);
	uint64_t acknowledged = before + (uint32_t)(resume->header.acknowledged - (uint32_t)before);

	resume->header_bytes = 0;
	if (acknowledged > atomic_load(&resume->kept.written))
		return -EPROTO;
	retained_acknowledge(&resume->kept, acknowledged);
	if (acknowledged != before)
		sleeper_wake(&resume->writer);
	if (resume->header.length == RECORD_END) {
		/* A writer may be the first to meet that the peer has hung up. */
		end_begin(resume);
		return -ESHUTDOWN;
	}
	if (resume->header.length > resume->most)
		return -EPROTO;
	resume->record_left = resume->header.length;
	return 0;
}

/* Take the headers out of what was read: how many bytes of the stream it holds, or an error. */
static ssize_t records_walk(struct resume *resume, uint8_t *bytes, size_t got)
{
	size_t kept = 0;

	for (size_t at = 0; at < got;) {
		size_t now = got - at;

		if (resume->record_left) {
			if (now > resume->record_left)
				now = resume->record_left;
			if (kept != at)
				memmove(bytes + kept, bytes + at, now);
			resume->record_left -= now;
			kept += now;
		} else {
			size_t missing = sizeof(resume->header) - resume->header_bytes;

			if (now > missing)
				now = missing;
			memcpy((uint8_t *)&resume->header + resume->header_bytes, bytes + at, now);
			resume->header_bytes += now;
			if (resume->header_bytes == sizeof(resume->header)) {
				resume->failed = header_take(resume);
				if (resume->failed)
					return kept ? (ssize_t)kept : resume->failed;
			}
		}
		at += now;
	}
	return (ssize_t)kept;
}

static void look_around(void *opaque)
{
	look(opaque);
}

/* Bytes of a record, all of which the peer has given to its connections, by several threads. */
static ssize_t record_take(struct resume *resume, uint8_t *buffer, size_t bytes)
{
	ssize_t got = transport_bundle_take(&resume->lower, buffer, bytes, look_around, resume);

	if (got > 0)
		resume->record_left -= (size_t)got;
	return got;
}

/* The stream's next bytes from the connection, at least one: -EAGAIN, or why there are none. */
static ssize_t stream_read(struct resume *resume, uint8_t *buffer, size_t bytes)
{
	ssize_t got;

	if (resume->failed)
		return resume->failed;
	do {
		size_t most = resume->record_left, whole = bytes < most ? bytes : most;

		if (whole >= BUNDLE_WIDE_BYTES)
			bulk_begin(resume);
		if (whole >= BUNDLE_WIDE_BYTES && transport_is_wide(&resume->lower)) {
			got = record_take(resume, buffer, whole);
			break;
		}
		/* Behind a large record its follower's header, and nothing else to move. */
		most += most < RESUME_BULK_BYTES ? RESUME_BULK_BYTES : sizeof(struct record);
		got = resume->lower.ops->read(&resume->lower, buffer, most < bytes ? most : bytes);
		if (got > 0)
			got = records_walk(resume, buffer, (size_t)got);
	} while (!got);
	if (resume->lower.bundle)
		atomic_store(&resume->reading, transport_bundle_reading(&resume->lower));
	return got;
}

/* What was met instead of bytes.  -EAGAIN: there may be some later. */
static ssize_t read_failed(struct resume *resume, ssize_t error)
{
	if (error == -EAGAIN)
		return -EAGAIN;
	/* The peer's word, and not the connection's. */
	if (resume->failed || error == -EPROTO) {
		error = resume->failed == -ESHUTDOWN ? -EPIPE : error;
		over(resume, (int)error);
		return error;
	}
	cut(resume, atomic_load(&resume->generation), (int)error);
	return -EAGAIN;
}

/* Read for whoever will.  0, or as read_failed. */
static ssize_t ahead_read(struct resume *resume)
{
	size_t bytes = atomic_load(&resume->ahead_bytes);
	int reading = atomic_load(&resume->reading);
	ssize_t got;

	if (!resume->ahead) {
		resume->ahead = malloc(resume->most + RESUME_BULK_BYTES);
		if (!resume->ahead)
			return -ENOMEM;
	}
	if (resume->ahead_start) {
		memmove(resume->ahead, resume->ahead + resume->ahead_start, bytes);
		resume->ahead_start = 0;
	}
	/* A peer that keeps to its window leaves room for headers. */
	if (bytes > resume->most) {
		resume->failed = -EPROTO;
		return read_failed(resume, -EPROTO);
	}
	got = stream_read(resume, resume->ahead + bytes, resume->most + RESUME_BULK_BYTES - bytes);
	if (atomic_load(&resume->reading) != reading)
		sleeper_wake(&resume->reader);
	if (got < 0)
		return read_failed(resume, got);
	atomic_store(&resume->ahead_bytes, bytes + (size_t)got);
	sleeper_wake(&resume->reader);
	return 0;
}

static ssize_t resume_read(struct transport *transport, void *buffer, size_t bytes)
{
	struct resume *resume = transport->resume;
	int cancel = transport_cancel_disable(), state;
	ssize_t got = -EAGAIN;
	size_t ahead;

	pthread_mutex_lock(&resume->in);
	state = atomic_load(&resume->state);
	ahead = atomic_load(&resume->ahead_bytes);
	if (state == OVER && !(ahead && resume->failed == -ESHUTDOWN)) {
		got = resume->error;
	} else if (state != CUT) {
		/* Over, too, where a writer has met the end that the peer has said: it is behind these. */
		if (ahead) {
			got = (ssize_t)(bytes < ahead ? bytes : ahead);
			memcpy(buffer, resume->ahead + resume->ahead_start, (size_t)got);
			resume->ahead_start += (size_t)got;
			atomic_store(&resume->ahead_bytes, ahead - (size_t)got);
		} else {
			int reading = atomic_load(&resume->reading);

			got = stream_read(resume, buffer, bytes);
			if (got < 0)
				got = read_failed(resume, got);
			/* An acknowledgement may lie in what it has read and not given, or come over
			 * another connection than before. */
			if ((atomic_load(&resume->buffers) && got > 0) || atomic_load(&resume->reading) != reading)
				sleeper_wake(&resume->writer);
		}
	}
	if (got > 0) {
		uint64_t consumed = atomic_load(&resume->consumed) + (uint64_t)got;

		atomic_store(&resume->consumed, consumed);
		if (consumed - atomic_load(&resume->told) >= resume->acknowledge)
			atomic_store(&resume->due, true);
	}
	pthread_mutex_unlock(&resume->in);
	acknowledge(resume);
	transport_cancel_restore(cancel);
	return got;
}

/* Has the lower transport bytes that the socket does not tell of? */
static bool lower_has(struct resume *resume)
{
	bool has;

	if (!atomic_load(&resume->buffers))
		return false;
	pthread_mutex_lock(&resume->in);
	has = is_up(resume) && resume->lower.ops->wait(&resume->lower, 0) == 0;
	pthread_mutex_unlock(&resume->in);
	return has;
}

static bool reader_has(struct resume *resume)
{
	return atomic_load(&resume->ahead_bytes) || lower_has(resume);
}

static bool writer_has(struct resume *resume)
{
	return retained_room(&resume->kept) || lower_has(resume);
}

/* All connections, for none of which anybody may look for long: what was written to one may be lost
 * with it, and the peer read from that one. */
static unsigned others(struct resume *resume, struct pollfd *on)
{
	int all[BUNDLE_CONNECTIONS];
	unsigned count = 0;

	pthread_mutex_lock(&resume->state_lock);
	if (is_up(resume) && resume->lower.bundle)
		count = transport_bundle_all(&resume->lower, all);
	pthread_mutex_unlock(&resume->state_lock);
	/* Errors are told unasked. */
	for (unsigned i = 0; i < count; i++)
		on[i] = (struct pollfd){ .fd = all[i] };
	return count;
}

/* Take what the kernel has told of what it has sent, if nobody else has by now. */
static void lower_hear(struct resume *resume)
{
	/* Under this lock no other connection takes its place. */
	pthread_mutex_lock(&resume->state_lock);
	if (is_up(resume) && resume->lower.ops->hear)
		(void)resume->lower.ops->hear(&resume->lower);
	pthread_mutex_unlock(&resume->state_lock);
}

/* Sleep until the descriptor has something, the connection is cut, or the other has taken what
 * this one `has` then.  -EAGAIN: nothing of that; the kernel has told of what it has sent. */
static int descriptor_sleep(struct resume *resume, struct sleeper *self, bool (*has)(struct resume *),
			    int timeout_ms)
{
	struct pollfd poll_on[3 + BUNDLE_CONNECTIONS] = {
		{ .events = POLLIN },
		{ .fd = self->wake, .events = POLLIN },
	};
	/* Where the kernel tells of sends, that alone is no error: one of TCP ends the connection, and is POLLHUP, too. */
	const short quiet = atomic_load(&resume->hears) ? POLLERR : 0;
	uint64_t generation = atomic_load(&resume->generation);
	unsigned count = 2, lost;
	short told = 0;
	int rc = 0;

	/* Counted before the state is looked at, as transport_resume_adopt looks after it was set:
	 * either this sees the cut, or it is waited for. */
	atomic_fetch_add(&resume->sleepers, 1);
	atomic_store(&self->asleep, true);
	poll_on[0].fd = atomic_load(&resume->reading);
	if (atomic_load(&resume->due))
		poll_on[count++] = (struct pollfd){ .fd = atomic_load(&resume->writing), .events = POLLOUT };
	lost = count;
	if (resume->options.bundles)
		count += others(resume, poll_on + count);
	if (is_up(resume) && !has(resume))
		rc = transport_poll_all(poll_on, count, timeout_ms);
	for (unsigned i = 0; i < count; i++)
		told |= poll_on[i].revents;
	if (told & quiet)
		lower_hear(resume);
	if (told && told == quiet)
		rc = -EAGAIN;
	for (unsigned i = lost; i < count && !poll_on[0].revents; i++)
		if (poll_on[i].revents & ~quiet)
			cut(resume, generation, -ECONNRESET);
	sleeper_awake(self, poll_on[1].revents);
	if (atomic_fetch_sub(&resume->sleepers, 1) == 1 && !is_up(resume)) {
		pthread_mutex_lock(&resume->state_lock);
		pthread_cond_broadcast(&resume->changed);
		pthread_mutex_unlock(&resume->state_lock);
	}
	return rc;
}

/* state_lock is held, and let go meanwhile; the connection is shut down. */
static void sleepers_await(struct resume *resume)
{
	struct timespec until;
	int rc = 0;

	until_set(&until, transport_now_ns() + RESUME_AWAKE_NS);
	while (!rc && atomic_load(&resume->sleepers) && atomic_load(&resume->state) == CUT)
		rc = pthread_cond_timedwait(&resume->changed, &resume->state_lock, &until);
}

static int stream_wait(struct resume *resume, int timeout_ms)
{
	uint64_t end = transport_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;

	for (;;) {
		int left = TRANSPORT_LOOK_MS, rc;

		if (timeout_ms >= 0) {
			int ms = transport_left_ms(end);

			if (ms < left)
				left = ms;
		}
		if (!is_up(resume)) {
			rc = up_await(resume, timeout_ms < 0 ? -1 : left);
			if (rc && rc != -ETIMEDOUT)
				return 0;	/* reading says what */
			if (atomic_load(&resume->state) == OVER)
				return 0;
			if (rc && transport_now_ns() >= end)
				return rc;
			continue;
		}
		if (reader_has(resume))
			return 0;
		/* The last acknowledgement found the socket full. */
		rc = descriptor_sleep(resume, &resume->reader, reader_has, left);
		acknowledge(resume);
		if (rc != -ETIMEDOUT && rc != -EAGAIN)
			return 0;
		look(resume);
		if (timeout_ms >= 0 && transport_now_ns() >= end)
			return -ETIMEDOUT;
	}
}

static int resume_wait(struct transport *transport, int timeout_ms)
{
	int cancel = transport_cancel_disable();
	int rc = stream_wait(transport->resume, timeout_ms);

	transport_cancel_restore(cancel);
	return rc;
}

/* ---- writing, from above ---- */

/* There is nothing to read, either. */
static void round_begin_full(struct resume *resume)
{
	pthread_mutex_lock(&resume->out);
	pthread_mutex_lock(&resume->in);
	if (is_up(resume))
		retained_round_begin_full(&resume->kept, resume->kept.window / RESUME_ACKS);
	pthread_mutex_unlock(&resume->in);
	out_unlock(resume);
}

/* `out` is held, and is let go meanwhile.  Send, and wait for room in the window. */
static int window_await(struct resume *resume)
{
	int rc = stream_flush(resume);

	for (;;) {
		ssize_t read = 0;

		retained_grow(&resume->kept);
		if (rc || retained_room(&resume->kept))
			break;
		out_unlock(resume);
		rc = up_await(resume, -1);
		if (!rc) {
			pthread_mutex_lock(&resume->in);
			if (is_up(resume) && !retained_room(&resume->kept))
				read = ahead_read(resume);
			pthread_mutex_unlock(&resume->in);
			/* What was just read may have been the acknowledgement. */
			if (read == -EAGAIN && is_up(resume) && !retained_room(&resume->kept)) {
				round_begin_full(resume);
				(void)descriptor_sleep(resume, &resume->writer, writer_has, TRANSPORT_LOOK_MS);
			} else if (read == -ENOMEM) {
				rc = -ENOMEM;
			}
			look(resume);
		}
		pthread_mutex_lock(&resume->out);
		if (!rc)
			rc = stream_flush(resume);
	}
	return rc;
}

/* Add to the stream; `out` is held. */
static int stream_add(struct resume *resume, const uint8_t *from, size_t bytes, bool lend)
{
	while (bytes) {
		uint64_t room = retained_room(&resume->kept);
		size_t now = bytes;

		if (!room) {
			int rc = window_await(resume);

			if (rc)
				return rc;
			retained_rewind(&resume->kept);
			continue;
		}
		if (now > room)
			now = (size_t)room;
		retained_add(&resume->kept, from, now, lend);
		from += now;
		bytes -= now;
	}
	return 0;
}

static int stream_write(struct transport *transport, struct iovec *vector, int count, bool lend,
			bool flush)
{
	struct resume *resume = transport->resume;
	int cancel = transport_cancel_disable(), rc = 0;

	pthread_mutex_lock(&resume->out);
	if (atomic_load(&resume->state) == OVER)
		rc = -EPIPE;
	retained_rewind(&resume->kept);
	if (vector[count - 1].iov_len >= BUNDLE_WIDE_BYTES)
		bulk_begin(resume);
	for (int i = 0; i < count && !rc; i++)
		rc = stream_add(resume, vector[i].iov_base, vector[i].iov_len, lend && i == count - 1);
	if (!rc && flush)
		rc = stream_flush(resume);
	out_unlock(resume);
	transport_cancel_restore(cancel);
	return rc;
}

static int resume_write(struct transport *transport, struct iovec *vector, int count)
{
	return stream_write(transport, vector, count, false, true);
}

static int resume_lend(struct transport *transport, struct iovec *vector, int count)
{
	return stream_write(transport, vector, count, true, true);
}

static int resume_append(struct transport *transport, struct iovec *vector, int count)
{
	return stream_write(transport, vector, count, false, false);
}

static void resume_settle(struct transport *transport, const void *at, size_t bytes)
{
	struct resume *resume = transport->resume;
	int cancel = transport_cancel_disable();

	pthread_mutex_lock(&resume->out);
	retained_settle(&resume->kept, at, bytes);
	out_unlock(resume);
	transport_cancel_restore(cancel);
}

/* Take in what the peer has acknowledged meanwhile, if there is anything to hear of, nobody else reads, and the next
 * to come is not much that a reader would have where it belongs.  Behind an end there is nothing. */
static void acknowledgements_take(struct resume *resume)
{
	/* Of what was not sent yet, as a frame's header, there is nothing. */
	if (resume->sent <= atomic_load(&resume->kept.acknowledged) || pthread_mutex_trylock(&resume->in) != 0)
		return;
	if (is_up(resume) && !resume->failed && resume->record_left < RESUME_BULK_BYTES)
		(void)ahead_read(resume);
	pthread_mutex_unlock(&resume->in);
}

static ssize_t resume_room(struct transport *transport, void **at, size_t bytes)
{
	struct resume *resume = transport->resume;
	uint8_t *place;
	uint64_t room;
	int rc = 0;

	pthread_mutex_lock(&resume->out);
	acknowledgements_take(resume);
	retained_rewind(&resume->kept);
	if (!retained_room(&resume->kept))
		rc = window_await(resume);
	room = retained_room(&resume->kept);
	bytes = retained_place(&resume->kept, &place, bytes < room ? bytes : (size_t)room);
	*at = place;
	out_unlock(resume);
	return rc ? rc : (ssize_t)bytes;
}

static int resume_written(struct transport *transport, size_t bytes, bool more)
{
	struct resume *resume = transport->resume;
	int rc;

	pthread_mutex_lock(&resume->out);
	retained_made(&resume->kept, bytes);
	/* The network has something to do meanwhile, but what is left of the ring before its end may be too little for a call. */
	if (!more || atomic_load(&resume->kept.written) - resume->sent >= RESUME_BULK_BYTES)
		rc = stream_flush(resume);
	else
		rc = atomic_load(&resume->state) == OVER ? -EPIPE : 0;
	out_unlock(resume);
	return rc;
}

static bool resume_is_wide(struct transport *transport)
{
	return atomic_load_explicit(&transport->resume->wide, memory_order_relaxed);
}

static void resume_memory(struct transport *transport, void **at, size_t *bytes)
{
	retained_memory(&transport->resume->kept, at, bytes);
}

/* End the stream, and say so to a peer that would wait for its continuation.  Said where that
 * costs no waiting: a peer that was not told waits for its grace time. */
static void resume_shutdown(struct transport *transport)
{
	struct resume *resume = transport->resume;
	int cancel = transport_cancel_disable();

	/* The peer may hang up before this thread goes on, and another one sees it. */
	end_begin(resume);
	if (is_up(resume) && pthread_mutex_trylock(&resume->out) == 0) {
		struct record record = {
			.length = RECORD_END,
			.acknowledged = (uint32_t)atomic_load(&resume->consumed),
		};
		struct iovec vector = { .iov_base = &record, .iov_len = sizeof(record) };

		if (is_up(resume) && lower_writable(resume) && !resume->lower.ops->write(&resume->lower, &vector, 1) &&
		    resume->lower.ops->drain)
			resume->lower.ops->drain(&resume->lower);
		pthread_mutex_unlock(&resume->out);
	}
	over(resume, -EPIPE);
	transport_cancel_restore(cancel);
}

/* ---- from one connection to the next ---- */

/* Have a connection be the first of several, where that was agreed upon and it is no pair of rings. */
static int lower_begin(const struct resume_options *options, struct transport *fresh)
{
	transport_zerocopy_begin(fresh);
	return options->bundles && !fresh->rdma ? transport_bundle_wrap(fresh, options->dial) : 0;
}

/* What to sleep on of a connection that nobody uses yet. */
static void descriptors_set(struct resume *resume)
{
	atomic_store(&resume->reading, resume->descriptor);
	atomic_store(&resume->writing, resume->lower.ops->writable ? -1 : resume->descriptor);
	atomic_store(&resume->hears, resume->lower.ops->hear != NULL);
	atomic_store(&resume->buffers, resume->options.bundles || strcmp(resume->lower.ops->name, "tcp") != 0);
}

static void *replay_thread(void *opaque)
{
	struct resume *resume = opaque;

	pthread_mutex_lock(&resume->out);
	(void)stream_flush(resume);
	out_unlock(resume);
	return NULL;
}

static bool peer_is_sane(struct resume *resume, uint64_t peer_received)
{
	uint64_t acknowledged = atomic_load(&resume->kept.acknowledged);

	return peer_received >= acknowledged && peer_received <= atomic_load(&resume->kept.written);
}

int transport_resume_hold(struct transport *transport, uint64_t peer_received, uint64_t *received)
{
	struct resume *resume = transport->resume;
	int state;

	if (!peer_is_sane(resume, peer_received))
		return -EPROTO;
	pthread_mutex_lock(&resume->state_lock);
	cut_locked(resume, -ETIMEDOUT);
	state = atomic_load(&resume->state);
	pthread_mutex_unlock(&resume->state_lock);
	if (state == OVER)
		return -EPIPE;
	/* Nobody reads any more while it is cut: this number stays. */
	pthread_mutex_lock(&resume->in);
	*received = atomic_load(&resume->consumed);
	pthread_mutex_unlock(&resume->in);
	return 0;
}

int transport_resume_adopt(struct transport *transport, struct transport *fresh,
			   uint64_t peer_received)
{
	struct resume *resume = transport->resume;
	bool replay = false;
	int rc = lower_begin(&resume->options, fresh);

	if (rc) {
		transport_release(fresh);
		return rc;
	}
	/* Who holds these for long does so over a connection that was shut down. */
	pthread_mutex_lock(&resume->out);
	pthread_mutex_lock(&resume->in);
	pthread_mutex_lock(&resume->state_lock);
	sleepers_await(resume);
	if (atomic_load(&resume->state) != CUT)
		rc = -EPIPE;
	else if (!peer_is_sane(resume, peer_received))
		rc = -EPROTO;
	else
		rc = clofork_copy(fresh->descriptor, resume->descriptor);
	if (!rc) {
		struct transport old = resume->lower;

		resume->lower = *fresh;
		clofork_close(resume->lower.descriptor);
		resume->lower.descriptor = resume->descriptor;
		if (resume->lower.bundle)
			transport_bundle_renumber(&resume->lower);
		descriptors_set(resume);
		/* What else it has; the descriptor is the new one's. */
		old.descriptor = -1;
		*fresh = old;
		retained_go_on(&resume->kept, peer_received);
		resume->sent = peer_received;
		atomic_store(&resume->told, atomic_load(&resume->consumed));
		resume->header_bytes = 0;
		resume->record_left = 0;
		resume->failed = 0;
		resume->ahead_start = 0;
		atomic_store(&resume->ahead_bytes, 0);
		silence_end(&resume->silence);
		atomic_store(&resume->due, false);
		atomic_store(&resume->wide, false);
		atomic_fetch_add(&resume->generation, 1);
		atomic_store(&resume->state, UP);
		pthread_cond_broadcast(&resume->changed);
		replay = resume->sent < atomic_load(&resume->kept.written);
	}
	pthread_mutex_unlock(&resume->state_lock);
	pthread_mutex_unlock(&resume->in);
	out_unlock(resume);
	transport_release(fresh);
	/* On a thread of its own: this one must hear of yet another connection. */
	if (replay && transport_thread_start(NULL, replay_thread, resume))
		replay_thread(resume);
	return rc;
}

uint64_t transport_resume_generation(struct transport *transport)
{
	return atomic_load(&transport->resume->generation);
}

bool transport_resume_may_join(struct transport *transport)
{
	struct resume *resume = transport->resume;
	bool may;

	pthread_mutex_lock(&resume->state_lock);
	may = is_up(resume) && resume->lower.bundle;
	pthread_mutex_unlock(&resume->state_lock);
	return may;
}

int transport_resume_join(struct transport *transport, struct transport *fresh, uint64_t generation,
			  unsigned number)
{
	struct resume *resume = transport->resume;
	int rc = -ESTALE;

	transport_zerocopy_begin(fresh);
	/* It has the connections' bundle, and not the streams: who writes may wait for long. */
	pthread_mutex_lock(&resume->state_lock);
	if (is_up(resume) && !resume->ending && resume->lower.bundle &&
	    atomic_load(&resume->generation) == generation)
		rc = transport_bundle_add(&resume->lower, number, fresh);
	if (rc > 0)
		atomic_store(&resume->wide, transport_is_wide(&resume->lower));
	pthread_mutex_unlock(&resume->state_lock);
	/* Who sleeps does not know of it. */
	sleeper_wake(&resume->reader);
	sleeper_wake(&resume->writer);
	return rc;
}

void transport_resume_joined(struct transport *transport, uint64_t generation, unsigned number)
{
	struct resume *resume = transport->resume;

	pthread_mutex_lock(&resume->state_lock);
	if (atomic_load(&resume->generation) == generation) {
		transport_bundle_ready(&resume->lower, number);
		atomic_store(&resume->wide, transport_is_wide(&resume->lower));
	}
	pthread_mutex_unlock(&resume->state_lock);
}

/* One attempt.  0, -EAGAIN, or why there is no use in another. */
static int dial_once(struct transport *transport)
{
	struct resume *resume = transport->resume;
	const struct resume_options *options = &resume->options;
	uint64_t received, peer_received, deadline, now = transport_now_ns();
	struct transport fresh = { .descriptor = -1 };
	int rc;

	pthread_mutex_lock(&resume->state_lock);
	deadline = resume->deadline_ns;
	pthread_mutex_unlock(&resume->state_lock);
	if (now >= deadline)
		return -ETIMEDOUT;
	rc = transport_resume_hold(transport, atomic_load(&resume->kept.acknowledged), &received);
	if (!rc)
		rc = options->dial(options->opaque, received, (int)((deadline - now) / 1000000u) + 1,
				   &fresh, &peer_received);
	if (!rc)
		rc = transport_resume_adopt(transport, &fresh, peer_received);
	if (!rc && options->resumed)
		options->resumed(options->opaque);
	return rc;
}

static void *dial_thread(void *opaque)
{
	struct resume *resume = opaque;
	struct transport self = { .ops = &resume->ops, .descriptor = resume->descriptor, .resume = resume };
	uint64_t pause_ms = 0;

	pthread_mutex_lock(&resume->state_lock);
	while (atomic_load(&resume->state) == CUT) {
		uint64_t until_ns = transport_now_ns() + pause_ms * 1000000u;
		struct timespec until;
		int rc = 0;

		if (until_ns > resume->deadline_ns)
			until_ns = resume->deadline_ns;
		until_set(&until, until_ns);
		while (pause_ms && atomic_load(&resume->state) == CUT && rc != ETIMEDOUT)
			rc = pthread_cond_timedwait(&resume->changed, &resume->state_lock, &until);
		if (atomic_load(&resume->state) != CUT)
			break;
		pthread_mutex_unlock(&resume->state_lock);
		rc = dial_once(&self);
		pause_ms = rc ? pause_ms * 2 : 0;
		if (rc && pause_ms < RESUME_PAUSE_MIN_MS)
			pause_ms = RESUME_PAUSE_MIN_MS;
		if (pause_ms > RESUME_PAUSE_MAX_MS)
			pause_ms = RESUME_PAUSE_MAX_MS;
		if (rc && rc != -EAGAIN)
			over(resume, rc);
		pthread_mutex_lock(&resume->state_lock);
	}
	resume->dialling = false;
	pthread_mutex_unlock(&resume->state_lock);
	return NULL;
}

void transport_resume_look(struct transport *transport)
{
	look(transport->resume);
}

/* ---- */

static const struct transport_ops resume_ops = {
	.write = resume_write,
	.read = resume_read,
	.wait = resume_wait,
	.room = resume_room,
	.written = resume_written,
	.lend = resume_lend,
	.settle = resume_settle,
	.append = resume_append,
	.memory = resume_memory,
	.wide = resume_is_wide,
	.shutdown = resume_shutdown,
};

void transport_resume_let_go(struct transport *transport)
{
	sleeper_drop(&transport->resume->reader);
	sleeper_drop(&transport->resume->writer);
}

/* All of it but the lower transport. */
static void resume_free(struct resume *resume)
{
	sleeper_drop(&resume->reader);
	sleeper_drop(&resume->writer);
	retained_drop(&resume->kept);
	free(resume->ahead);
	free(resume);
}

int transport_resume_wrap(struct transport *transport, const struct resume_options *options)
{
	struct resume *resume = calloc(1, sizeof(*resume));
	size_t window = options->grows ? RESUME_WINDOW_FIRST : RESUME_WINDOW_BYTES;
	unsigned lead = sizeof(struct record) + (options->bundles ? BUNDLE_HEADER_BYTES : 0);
	pthread_condattr_t attributes;

	if (!resume)
		return -ENOMEM;
	resume->most = options->grows ? RESUME_WINDOW_MOST : RESUME_WINDOW_BYTES;
	resume->acknowledge = RESUME_WINDOW_FIRST / RESUME_ACKS;
	if (options->prompt && options->dial)
		resume->acknowledge = RESUME_WINDOW_RING / RESUME_PROMPT_ACKS;
	else if (options->prompt && options->grows && transport_is_local(transport->descriptor))
		window = RESUME_WINDOW_RING;
	if (retained_make(&resume->kept, window, resume->most, RESUME_STAGING_BYTES, lead)) {
		free(resume);
		return -ENOMEM;
	}
	resume->writer.wake = -1;
	if (!sleeper_make(&resume->reader, transport->descriptor) ||
	    !sleeper_make(&resume->writer, transport->descriptor)) {
		resume_free(resume);
		return -EMFILE;
	}
	resume->lower = *transport;
	resume->options = *options;
	if (lower_begin(options, &resume->lower)) {
		transport_zerocopy_drop(resume->lower.zerocopy);
		resume_free(resume);
		return -ENOMEM;
	}
	resume->descriptor = transport->descriptor;
	descriptors_set(resume);
	resume->ops = resume_ops;
	resume->ops.name = transport->ops->name;
	pthread_mutex_init(&resume->out, NULL);
	pthread_mutex_init(&resume->in, NULL);
	pthread_mutex_init(&resume->state_lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&resume->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	atomic_store(&resume->state, UP);
	*transport = (struct transport){
		.ops = &resume->ops,
		.descriptor = resume->descriptor,
		.resume = resume,
	};
	return 0;
}

/* Nobody uses it any more, and its descriptor is closed. */
void transport_resume_drop(struct resume *resume)
{
	if (!resume)
		return;
	resume->lower.descriptor = -1;
	transport_release(&resume->lower);
	resume_free(resume);
}
