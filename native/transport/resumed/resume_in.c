/* What comes in: records, and the bytes of the stream in them (resume_stream.h).
 *
 * A writer without room in the window must hear of acknowledgements, and there may be nobody who
 * reads.  It then reads ahead, which takes at most the peer's window: both sides can always
 * take in all that the other may send, so that two writers never wait for each other.  All of it is under `in`. */
#include "../sockets/bundle.h"
#include "resume_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
		carrier_end_begin(&resume->carrier);
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
	resume_look(opaque);
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
			resume_bulk_begin(resume);
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
		carrier_over(&resume->carrier, (int)error);
		return error;
	}
	carrier_cut(&resume->carrier, atomic_load(&resume->carrier.generation), (int)error);
	return -EAGAIN;
}

ssize_t resume_ahead_read(struct resume *resume)
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

/* Of what was read ahead, of which there is some. */
static ssize_t ahead_take(struct resume *resume, void *buffer, size_t bytes)
{
	size_t ahead = atomic_load(&resume->ahead_bytes), now = bytes < ahead ? bytes : ahead;

	memcpy(buffer, resume->ahead + resume->ahead_start, now);
	resume->ahead_start += now;
	atomic_store(&resume->ahead_bytes, ahead - now);
	return (ssize_t)now;
}

static ssize_t connection_take(struct resume *resume, void *buffer, size_t bytes)
{
	int reading = atomic_load(&resume->reading);
	ssize_t got = stream_read(resume, buffer, bytes);

	if (got < 0)
		got = read_failed(resume, got);
	/* An acknowledgement may lie in what it has read and not given, or come over
	 * another connection than before. */
	if ((atomic_load(&resume->buffers) && got > 0) || atomic_load(&resume->reading) != reading)
		sleeper_wake(&resume->writer);
	return got;
}

ssize_t resume_take(struct resume *resume, void *buffer, size_t bytes)
{
	ssize_t got = -EAGAIN;
	size_t ahead;
	int state;

	pthread_mutex_lock(&resume->in);
	state = atomic_load(&resume->carrier.state);
	ahead = atomic_load(&resume->ahead_bytes);
	if (state == CARRIER_OVER && !(ahead && resume->failed == -ESHUTDOWN))
		got = resume->carrier.error;
	/* Over, too, where a writer has met the end that the peer has said: it is behind these. */
	else if (state != CARRIER_CUT)
		got = ahead ? ahead_take(resume, buffer, bytes) : connection_take(resume, buffer, bytes);
	if (got > 0) {
		uint64_t consumed = atomic_load(&resume->consumed) + (uint64_t)got;

		atomic_store(&resume->consumed, consumed);
		if (consumed - atomic_load(&resume->told) >= resume->acknowledge)
			atomic_store(&resume->due, true);
	}
	pthread_mutex_unlock(&resume->in);
	return got;
}

bool resume_reader_has(struct resume *resume)
{
	return atomic_load(&resume->ahead_bytes) || resume_lower_has(resume);
}
