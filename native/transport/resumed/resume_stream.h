/* resume_stream.h - the inside of resume.h: two streams of bytes, one in each direction, over one connection after the other.
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
 *	resume_out.c	what is written: records, the window, acknowledgements
 *	resume_in.c	what is read: records, for who reads and ahead of him
 *	resume_sleep.c	who waits until the connection has something
 *	carrier.h	is there a connection?
 *	resume.c	the streams as one transport, from one connection to the next
 *
 * Each knows those beneath it.
 *
 * Locks, in the order in which they are taken: out > in > carrier.lock.
 */
#ifndef FARBUS_TRANSPORT_RESUME_STREAM_H
#define FARBUS_TRANSPORT_RESUME_STREAM_H

#include <pthread.h>
#include <stdatomic.h>

#include "../ground/sleeper.h"
#include "../sockets/silence.h"
#include "carrier.h"
#include "resume.h"
#include "retained.h"

/* From here on the bytes of a record are read to where they belong; less is read together
 * with what follows, and moved over the headers in between. */
#define RESUME_BULK_BYTES 4096u
/* Acknowledgements are so many to the least window that the peer may have: often enough that it
 * is never short of more than a part of it, rarely enough that they cost nothing beside
 * what they acknowledge, and that a copy of 1 MiB, whose successor's request acknowledges it, needs none. */
#define RESUME_ACKS 3u

struct record {
	uint32_t length;		/* of the bytes that follow, or RECORD_END */
	uint32_t acknowledged;		/* the lower half */
};
_Static_assert(sizeof(struct record) == 8, "wire layout");

/* The sender has ended the stream: nothing will be resumed. */
#define RECORD_END UINT32_MAX

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

	struct carrier carrier;
	struct silence silence;		/* of this connection; under the carrier's lock */
	struct sleeper reader;		/* who reads, in poll(2) on the descriptor */
	struct sleeper writer;		/* who wants to write */
};

static inline bool resume_is_up(struct resume *resume)
{
	return carrier_is_up(&resume->carrier);
}

static inline bool resume_is_over(struct resume *resume)
{
	return carrier_is_over(&resume->carrier);
}

/* Something large is written or read. */
static inline void resume_bulk_begin(struct resume *resume)
{
	if (resume->options.bulk && !atomic_load(&resume->bulk) && !atomic_exchange(&resume->bulk, true))
		resume->options.bulk(resume->options.opaque);
}

/* ---- resume_sleep.c ---- */

/* Is the network still there? */
void resume_look(struct resume *resume);
/* Has the lower transport bytes that the socket does not tell of? */
bool resume_lower_has(struct resume *resume);
/* Sleep until the descriptor has something, the connection is cut, or the other has taken what
 * this one `has` then.  -EAGAIN: nothing of that; the kernel has told of what it has sent. */
int resume_sleep(struct resume *resume, struct sleeper *self, bool (*has)(struct resume *), int timeout_ms);

/* ---- resume_in.c ---- */

/* Bytes for who reads: how many, or -EAGAIN, or why there will be none.  An acknowledgement may be due then. */
ssize_t resume_take(struct resume *resume, void *buffer, size_t bytes);
/* Read for whoever will; `in` is held.  0, or as resume_take. */
ssize_t resume_ahead_read(struct resume *resume);
bool resume_reader_has(struct resume *resume);

/* ---- resume_out.c ---- */

/* Send what was not sent; `out` is held.  While the stream is cut it stays, and is no error. */
int resume_flush(struct resume *resume);
/* Acknowledge if that is due, and if nobody writes: who does, does it, here, afterwards.  It
 * never waits: a reader that waits for room may be what the peer's reader waits for. */
void resume_acknowledge(struct resume *resume);
void resume_out_unlock(struct resume *resume);

/* As transport_ops has them. */
int resume_write(struct transport *transport, struct iovec *vector, int count);
int resume_lend(struct transport *transport, struct iovec *vector, int count);
int resume_append(struct transport *transport, struct iovec *vector, int count);
void resume_settle(struct transport *transport, const void *at, size_t bytes);
ssize_t resume_room(struct transport *transport, void **at, size_t bytes);
int resume_written(struct transport *transport, size_t bytes, bool more);
void resume_memory(struct transport *transport, void **at, size_t *bytes);
/* End the stream, and say so to a peer that would wait for its continuation.  Said where that
 * costs no waiting: a peer that was not told waits for its grace time. */
void resume_shutdown(struct transport *transport);

#endif
