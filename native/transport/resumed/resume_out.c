/* What goes out: what is written, cut into records, and acknowledgements (resume_stream.h).  All of it is under `out`. */
#include "../sockets/bundle.h"
#include "../sockets/socket.h"
#include "resume_stream.h"

#include <errno.h>
#include <poll.h>

/* Pieces of a record that go to the lower transport in one call. */
#define RESUME_PIECES 16

/* ---- records ---- */

/* Send one record: of what was not sent, as much as goes at once, or nothing but its header.
 * false: the connection is cut. */
static bool record_send(struct resume *resume, bool bare)
{
	uint64_t consumed = atomic_load(&resume->consumed);
	uint64_t generation = atomic_load(&resume->carrier.generation);
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
			carrier_over(&resume->carrier, rc);
		carrier_cut(&resume->carrier, generation, rc);
		return false;
	}
	resume->sent = at;
	atomic_store(&resume->told, consumed);
	return true;
}

int resume_flush(struct resume *resume)
{
	while (resume->sent < atomic_load(&resume->kept.written) && resume_is_up(resume) &&
	       record_send(resume, false))
		;
	return resume_is_over(resume) ? -EPIPE : 0;
}

static bool lower_writable(struct resume *resume)
{
	struct pollfd on = { .fd = atomic_load(&resume->writing), .events = POLLOUT };

	if (resume->lower.ops->writable)
		return resume->lower.ops->writable(&resume->lower);
	/* Nor is it room what the kernel may have to say of what it has sent; of an end it tells as of room. */
	return transport_poll_all(&on, 1, 0) == 0 && on.revents & POLLOUT;
}

void resume_acknowledge(struct resume *resume)
{
	while (atomic_load(&resume->due) && resume_is_up(resume) &&
	       pthread_mutex_trylock(&resume->out) == 0) {
		bool now = resume_is_up(resume) && lower_writable(resume);

		if (now)
			(void)record_send(resume, true);
		pthread_mutex_unlock(&resume->out);
		if (!now)
			return;
	}
}

void resume_out_unlock(struct resume *resume)
{
	pthread_mutex_unlock(&resume->out);
	resume_acknowledge(resume);
}

/* ---- the window ---- */

static bool writer_has(struct resume *resume)
{
	return retained_room(&resume->kept) || resume_lower_has(resume);
}

/* There is nothing to read, either. */
static void round_begin_full(struct resume *resume)
{
	pthread_mutex_lock(&resume->out);
	pthread_mutex_lock(&resume->in);
	if (resume_is_up(resume))
		retained_round_begin_full(&resume->kept, resume->kept.window / RESUME_ACKS);
	pthread_mutex_unlock(&resume->in);
	resume_out_unlock(resume);
}

/* `out` is held, and is let go meanwhile.  Send, and wait for room in the window. */
static int window_await(struct resume *resume)
{
	int rc = resume_flush(resume);

	for (;;) {
		ssize_t read = 0;

		retained_grow(&resume->kept);
		if (rc || retained_room(&resume->kept))
			break;
		resume_out_unlock(resume);
		rc = carrier_await(&resume->carrier, -1);
		if (!rc) {
			pthread_mutex_lock(&resume->in);
			if (resume_is_up(resume) && !retained_room(&resume->kept))
				read = resume_ahead_read(resume);
			pthread_mutex_unlock(&resume->in);
			/* What was just read may have been the acknowledgement. */
			if (read == -EAGAIN && resume_is_up(resume) && !retained_room(&resume->kept)) {
				round_begin_full(resume);
				(void)resume_sleep(resume, &resume->writer, writer_has, TRANSPORT_LOOK_MS);
			} else if (read == -ENOMEM) {
				rc = -ENOMEM;
			}
			resume_look(resume);
		}
		pthread_mutex_lock(&resume->out);
		if (!rc)
			rc = resume_flush(resume);
	}
	return rc;
}

/* ---- as a transport ---- */

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
	if (resume_is_over(resume))
		rc = -EPIPE;
	retained_rewind(&resume->kept);
	if (vector[count - 1].iov_len >= BUNDLE_WIDE_BYTES)
		resume_bulk_begin(resume);
	for (int i = 0; i < count && !rc; i++)
		rc = stream_add(resume, vector[i].iov_base, vector[i].iov_len, lend && i == count - 1);
	if (!rc && flush)
		rc = resume_flush(resume);
	resume_out_unlock(resume);
	transport_cancel_restore(cancel);
	return rc;
}

int resume_write(struct transport *transport, struct iovec *vector, int count)
{
	return stream_write(transport, vector, count, false, true);
}

int resume_lend(struct transport *transport, struct iovec *vector, int count)
{
	return stream_write(transport, vector, count, true, true);
}

int resume_append(struct transport *transport, struct iovec *vector, int count)
{
	return stream_write(transport, vector, count, false, false);
}

void resume_settle(struct transport *transport, const void *at, size_t bytes)
{
	struct resume *resume = transport->resume;
	int cancel = transport_cancel_disable();

	pthread_mutex_lock(&resume->out);
	retained_settle(&resume->kept, at, bytes);
	resume_out_unlock(resume);
	transport_cancel_restore(cancel);
}

/* Take in what the peer has acknowledged meanwhile, if there is anything to hear of, nobody else reads, and the next
 * to come is not much that a reader would have where it belongs.  Behind an end there is nothing. */
static void acknowledgements_take(struct resume *resume)
{
	/* Of what was not sent yet, as a frame's header, there is nothing. */
	if (resume->sent <= atomic_load(&resume->kept.acknowledged) || pthread_mutex_trylock(&resume->in) != 0)
		return;
	if (resume_is_up(resume) && !resume->failed && resume->record_left < RESUME_BULK_BYTES)
		(void)resume_ahead_read(resume);
	pthread_mutex_unlock(&resume->in);
}

ssize_t resume_room(struct transport *transport, void **at, size_t bytes)
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
	resume_out_unlock(resume);
	return rc ? rc : (ssize_t)bytes;
}

int resume_written(struct transport *transport, size_t bytes, bool more)
{
	struct resume *resume = transport->resume;
	int rc;

	pthread_mutex_lock(&resume->out);
	retained_made(&resume->kept, bytes);
	/* The network has something to do meanwhile, but what is left of the ring before its end may be too little for a call. */
	if (!more || atomic_load(&resume->kept.written) - resume->sent >= RESUME_BULK_BYTES)
		rc = resume_flush(resume);
	else
		rc = resume_is_over(resume) ? -EPIPE : 0;
	resume_out_unlock(resume);
	return rc;
}

void resume_memory(struct transport *transport, void **at, size_t *bytes)
{
	retained_memory(&transport->resume->kept, at, bytes);
}

void resume_shutdown(struct transport *transport)
{
	struct resume *resume = transport->resume;
	int cancel = transport_cancel_disable();

	/* The peer may hang up before this thread goes on, and another one sees it. */
	carrier_end_begin(&resume->carrier);
	if (resume_is_up(resume) && pthread_mutex_trylock(&resume->out) == 0) {
		struct record record = {
			.length = RECORD_END,
			.acknowledged = (uint32_t)atomic_load(&resume->consumed),
		};
		struct iovec vector = { .iov_base = &record, .iov_len = sizeof(record) };

		if (resume_is_up(resume) && lower_writable(resume) && !resume->lower.ops->write(&resume->lower, &vector, 1) &&
		    resume->lower.ops->drain)
			resume->lower.ops->drain(&resume->lower);
		pthread_mutex_unlock(&resume->out);
	}
	carrier_over(&resume->carrier, -EPIPE);
	transport_cancel_restore(cancel);
}
