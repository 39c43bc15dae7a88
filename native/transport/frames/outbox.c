#include "../ground/futex.h"
#include "../ground/thread.h"
#include "outbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How long collected frames may wait for company. */
#define OUTBOX_LINGER_NS 50000
/* How many empty rounds the thread makes before it sleeps until it is woken:
 * a wake-up costs the posting thread microseconds, a round costs whoever spins on this
 * processor as much. */
#define OUTBOX_IDLE_ROUNDS 8

int outbox_init(struct outbox *outbox, struct transport *transport)
{
	memset(outbox, 0, sizeof(*outbox));
	outbox->transport = transport;
	pthread_mutex_init(&outbox->append, NULL);
	pthread_mutex_init(&outbox->write, NULL);
	for (int i = 0; i < 2; i++) {
		outbox->buffers[i] = malloc(OUTBOX_BYTES);
		if (!outbox->buffers[i]) {
			outbox_release(outbox);
			return -ENOMEM;
		}
	}
	return 0;
}

void outbox_release(struct outbox *outbox)
{
	for (int i = 0; i < 2; i++) {
		free(outbox->buffers[i]);
		outbox->buffers[i] = NULL;
	}
}

static void *outbox_thread(void *opaque)
{
	struct outbox *outbox = opaque;
	const struct timespec linger = { .tv_nsec = OUTBOX_LINGER_NS };
	int idle = 0;

	while (!atomic_load(&outbox->stop)) {
		bool pending;

		pthread_mutex_lock(&outbox->append);
		pending = outbox->filled && !outbox->error;
		if (!pending && ++idle > OUTBOX_IDLE_ROUNDS) {
			/* Still under the lock: who appends next sees this. */
			atomic_store(&outbox->asleep, 1);
			pthread_mutex_unlock(&outbox->append);
			while (atomic_load(&outbox->asleep) && !atomic_load(&outbox->stop))
				futex_wait(&outbox->asleep, 1);
			idle = 0;
			continue;
		}
		pthread_mutex_unlock(&outbox->append);
		if (pending) {
			idle = 0;
			outbox_flush(outbox);
		}
		nanosleep(&linger, NULL);
	}
	return NULL;
}

int outbox_start(struct outbox *outbox)
{
	int rc;

	if (outbox->transport->ops->direct)
		return 0;
	rc = transport_thread_start(&outbox->thread, outbox_thread, outbox);
	if (rc)
		return rc;
	outbox->thread_started = true;
	return 0;
}

void outbox_stop(struct outbox *outbox)
{
	if (!outbox->thread_started)
		return;
	atomic_store(&outbox->stop, true);
	atomic_store(&outbox->asleep, 0);
	futex_wake(&outbox->asleep);
	pthread_join(outbox->thread, NULL);
	outbox->thread_started = false;
}

static int outbox_fail(struct outbox *outbox, int error)
{
	pthread_mutex_lock(&outbox->append);
	if (!outbox->error)
		outbox->error = error;
	outbox->filled = 0;
	pthread_mutex_unlock(&outbox->append);
	return error;
}

/* The write lock is held: write what is collected, then `extra`, whose last part may be lent. */
static int outbox_write(struct outbox *outbox, uint8_t *collected, size_t bytes,
			const struct iovec *extra, int extra_count, bool lend)
{
	const struct transport_ops *ops = outbox->transport->ops;
	struct iovec vector[4];
	int count = 0, rc;

	if (bytes)
		vector[count++] = (struct iovec){ .iov_base = collected, .iov_len = bytes };
	for (int i = 0; i < extra_count; i++)
		if (extra[i].iov_len)
			vector[count++] = extra[i];
	if (!count)
		return 0;
	rc = (lend && ops->lend ? ops->lend : ops->write)(outbox->transport, vector, count);
	return rc ? outbox_fail(outbox, rc) : 0;
}

int outbox_flush(struct outbox *outbox)
{
	uint8_t *collected;
	size_t bytes;
	int rc;

	if (outbox->transport->ops->direct)
		return 0;
	pthread_mutex_lock(&outbox->write);
	pthread_mutex_lock(&outbox->append);
	rc = outbox->error;
	collected = outbox->buffers[outbox->active];
	bytes = outbox->filled;
	if (bytes)
		outbox->active ^= 1;
	outbox->filled = 0;
	pthread_mutex_unlock(&outbox->append);
	if (!rc)
		rc = outbox_write(outbox, collected, bytes, NULL, 0, false);
	pthread_mutex_unlock(&outbox->write);
	return rc;
}

/* A frame whose tail is not copied: it leaves under the write lock, so that the
 * order of sequence numbers stays the order of the bytes. */
static int outbox_append_large(struct outbox *outbox, struct wire_header *header,
			       const struct iovec *parts, int part_count, bool lend,
			       outbox_register on_sequence, void *opaque)
{
	struct iovec vector[3];
	uint8_t *collected;
	size_t bytes;
	int rc;

	pthread_mutex_lock(&outbox->write);
	pthread_mutex_lock(&outbox->append);
	rc = outbox->error;
	if (rc) {
		pthread_mutex_unlock(&outbox->append);
		pthread_mutex_unlock(&outbox->write);
		return rc;
	}
	header->sequence = ++outbox->sequence;
	if (on_sequence)
		on_sequence(opaque, header->sequence);
	collected = outbox->buffers[outbox->active];
	bytes = outbox->filled;
	if (bytes)
		outbox->active ^= 1;
	outbox->filled = 0;
	pthread_mutex_unlock(&outbox->append);
	vector[0] = (struct iovec){ .iov_base = header, .iov_len = sizeof(*header) };
	for (int i = 0; i < part_count; i++)
		vector[i + 1] = parts[i];
	rc = outbox_write(outbox, collected, bytes, vector, part_count + 1, lend);
	pthread_mutex_unlock(&outbox->write);
	return rc;
}

/* A frame for a transport that nothing need be collected for.  Room is waited for
 * under the append lock: whoever comes next would have to wait for it too. */
static int outbox_append_direct(struct outbox *outbox, struct wire_header *header,
				const struct iovec *parts, int part_count,
				outbox_register on_sequence, void *opaque)
{
	struct iovec vector[3];
	int rc;

	pthread_mutex_lock(&outbox->append);
	rc = outbox->error;
	if (!rc) {
		header->sequence = ++outbox->sequence;
		if (on_sequence)
			on_sequence(opaque, header->sequence);
		vector[0] = (struct iovec){ .iov_base = header, .iov_len = sizeof(*header) };
		for (int i = 0; i < part_count; i++)
			vector[i + 1] = parts[i];
		rc = outbox->transport->ops->write(outbox->transport, vector, part_count + 1);
		outbox->error = rc;
	}
	pthread_mutex_unlock(&outbox->append);
	return rc;
}

static int append(struct outbox *outbox, struct wire_header *header, const void *fixed,
		  size_t fixed_bytes, const void *tail, size_t tail_bytes, bool lend,
		  outbox_register on_sequence, void *opaque)
{
	size_t total = sizeof(*header) + fixed_bytes + tail_bytes;
	bool wake = false;
	uint8_t *at;

	const struct iovec parts[2] = {
		{ .iov_base = (void *)fixed, .iov_len = fixed_bytes },
		{ .iov_base = (void *)tail, .iov_len = tail_bytes },
	};

	header->length = (uint32_t)(fixed_bytes + tail_bytes);
	if (outbox->transport->ops->direct)
		return outbox_append_direct(outbox, header, parts, 2, on_sequence, opaque);
	if (tail_bytes >= OUTBOX_COPY_BYTES)
		return outbox_append_large(outbox, header, parts, 2, lend, on_sequence, opaque);
	pthread_mutex_lock(&outbox->append);
	while (OUTBOX_BYTES - outbox->filled < total && !outbox->error) {
		pthread_mutex_unlock(&outbox->append);
		outbox_flush(outbox);
		pthread_mutex_lock(&outbox->append);
	}
	if (outbox->error) {
		int rc = outbox->error;

		pthread_mutex_unlock(&outbox->append);
		return rc;
	}
	header->sequence = ++outbox->sequence;
	if (on_sequence)
		on_sequence(opaque, header->sequence);
	at = outbox->buffers[outbox->active] + outbox->filled;
	memcpy(at, header, sizeof(*header));
	if (fixed_bytes)
		memcpy(at + sizeof(*header), fixed, fixed_bytes);
	if (tail_bytes)
		memcpy(at + sizeof(*header) + fixed_bytes, tail, tail_bytes);
	outbox->filled += total;
	/* A caller that registers a waiter flushes by itself. */
	if (!on_sequence && atomic_load_explicit(&outbox->asleep, memory_order_relaxed)) {
		atomic_store(&outbox->asleep, 0);
		wake = true;
	}
	pthread_mutex_unlock(&outbox->append);
	if (wake)
		futex_wake(&outbox->asleep);
	return 0;
}

int outbox_append(struct outbox *outbox, struct wire_header *header, const void *fixed,
		  size_t fixed_bytes, const void *tail, size_t tail_bytes,
		  outbox_register on_sequence, void *opaque)
{
	return append(outbox, header, fixed, fixed_bytes, tail, tail_bytes, false, on_sequence, opaque);
}

int outbox_lend(struct outbox *outbox, struct wire_header *header, const void *fixed,
		size_t fixed_bytes, const void *tail, size_t tail_bytes)
{
	return append(outbox, header, fixed, fixed_bytes, tail, tail_bytes, true, NULL, NULL);
}

void outbox_settle(struct outbox *outbox, const void *at, size_t bytes)
{
	const struct transport_ops *ops = outbox->transport->ops;

	if (bytes >= OUTBOX_COPY_BYTES && ops->settle)
		ops->settle(outbox->transport, at, bytes);
}
