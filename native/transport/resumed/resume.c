/* The streams as one transport (resume.h), from one connection to the next.
 *
 * Another connection takes the place of the lower transport under all three locks.  Its descriptor keeps its number
 * (dup3(2)), so that nobody who is about to sleep on it ever meets a stranger's; and who does sleep
 * is woken first, since poll(2) would go on with the new connection without having heard of it.
 */
#include "../ground/clofork.h"
#include "../ground/thread.h"
#include "../sockets/bundle.h"
#include "../sockets/socket.h"
#include "../sockets/zerocopy.h"
#include "resume_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((RESUME_WINDOW_BYTES & (RESUME_WINDOW_BYTES - 1)) == 0 &&
		       (RESUME_WINDOW_FIRST & (RESUME_WINDOW_FIRST - 1)) == 0 &&
		       (RESUME_WINDOW_RING & (RESUME_WINDOW_RING - 1)) == 0 &&
		       (RESUME_WINDOW_MOST & (RESUME_WINDOW_MOST - 1)) == 0,
	       "offsets are masked");
/* RESUME_ACKS to a window that begins with RESUME_WINDOW_RING: what comes in one call, and is to be made again where it was, is a
 * part of it. */
#define RESUME_PROMPT_ACKS 4u
/* Memory for what is made in place and leaves at once, as much as the least window.  It is taken from the beginning each time, as
 * far as that is acknowledged: a ring goes round through all of its window, which a cache may not hold. */
#define RESUME_STAGING_BYTES RESUME_WINDOW_RING

/* ---- reading ---- */

static ssize_t resume_read(struct transport *transport, void *buffer, size_t bytes)
{
	struct resume *resume = transport->resume;
	int cancel = transport_cancel_disable();
	ssize_t got = resume_take(resume, buffer, bytes);

	resume_acknowledge(resume);
	transport_cancel_restore(cancel);
	return got;
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
		if (!resume_is_up(resume)) {
			rc = carrier_await(&resume->carrier, timeout_ms < 0 ? -1 : left);
			if (rc && rc != -ETIMEDOUT)
				return 0;	/* reading says what */
			if (resume_is_over(resume))
				return 0;
			if (rc && transport_now_ns() >= end)
				return rc;
			continue;
		}
		if (resume_reader_has(resume))
			return 0;
		/* The last acknowledgement found the socket full. */
		rc = resume_sleep(resume, &resume->reader, resume_reader_has, left);
		resume_acknowledge(resume);
		if (rc != -ETIMEDOUT && rc != -EAGAIN)
			return 0;
		resume_look(resume);
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

static bool resume_is_wide(struct transport *transport)
{
	return atomic_load_explicit(&transport->resume->wide, memory_order_relaxed);
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
	(void)resume_flush(resume);
	resume_out_unlock(resume);
	return NULL;
}

static bool peer_is_sane(struct resume *resume, uint64_t peer_received)
{
	uint64_t acknowledged = atomic_load(&resume->kept.acknowledged);

	return peer_received >= acknowledged && peer_received <= atomic_load(&resume->kept.written);
}

static int hold(struct resume *resume, uint64_t peer_received, uint64_t *received)
{
	bool over;

	if (!peer_is_sane(resume, peer_received))
		return -EPROTO;
	pthread_mutex_lock(&resume->carrier.lock);
	carrier_cut_locked(&resume->carrier, -ETIMEDOUT);
	over = resume_is_over(resume);
	pthread_mutex_unlock(&resume->carrier.lock);
	if (over)
		return -EPIPE;
	/* Nobody reads any more while it is cut: this number stays. */
	pthread_mutex_lock(&resume->in);
	*received = atomic_load(&resume->consumed);
	pthread_mutex_unlock(&resume->in);
	return 0;
}

int transport_resume_hold(struct transport *transport, uint64_t peer_received, uint64_t *received)
{
	return hold(transport->resume, peer_received, received);
}

/* With all three locks: `fresh`, which has the descriptor's number by now, takes the place of the one that was cut, which is the
 * caller's to release. */
static void connection_change(struct resume *resume, struct transport *fresh, uint64_t peer_received)
{
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
	carrier_up_locked(&resume->carrier);
}

static int adopt(struct resume *resume, struct transport *fresh, uint64_t peer_received)
{
	bool replay = false;
	int rc = lower_begin(&resume->options, fresh);

	if (rc) {
		transport_release(fresh);
		return rc;
	}
	/* Who holds these for long does so over a connection that was shut down. */
	pthread_mutex_lock(&resume->out);
	pthread_mutex_lock(&resume->in);
	pthread_mutex_lock(&resume->carrier.lock);
	carrier_sleepers_await(&resume->carrier);
	if (resume_is_up(resume) || resume_is_over(resume))
		rc = -EPIPE;
	else if (!peer_is_sane(resume, peer_received))
		rc = -EPROTO;
	else
		rc = clofork_copy(fresh->descriptor, resume->descriptor);
	if (!rc) {
		connection_change(resume, fresh, peer_received);
		replay = resume->sent < atomic_load(&resume->kept.written);
	}
	pthread_mutex_unlock(&resume->carrier.lock);
	pthread_mutex_unlock(&resume->in);
	resume_out_unlock(resume);
	transport_release(fresh);
	/* On a thread of its own: this one must hear of yet another connection. */
	if (replay && transport_thread_start(NULL, replay_thread, resume))
		replay_thread(resume);
	return rc;
}

int transport_resume_adopt(struct transport *transport, struct transport *fresh,
			   uint64_t peer_received)
{
	return adopt(transport->resume, fresh, peer_received);
}

/* One attempt, on the carrier's thread (carrier.h). */
static int dial_once(void *opaque, int left_ms)
{
	struct resume *resume = opaque;
	const struct resume_options *options = &resume->options;
	struct transport fresh = { .descriptor = -1 };
	uint64_t received, peer_received;
	int rc = hold(resume, atomic_load(&resume->kept.acknowledged), &received);

	if (!rc)
		rc = options->dial(options->opaque, received, left_ms, &fresh, &peer_received);
	if (!rc)
		rc = adopt(resume, &fresh, peer_received);
	if (!rc && options->resumed)
		options->resumed(options->opaque);
	return rc;
}

/* ---- further connections beside the one there is ---- */

uint64_t transport_resume_generation(struct transport *transport)
{
	return atomic_load(&transport->resume->carrier.generation);
}

bool transport_resume_may_join(struct transport *transport)
{
	struct resume *resume = transport->resume;
	bool may;

	pthread_mutex_lock(&resume->carrier.lock);
	may = resume_is_up(resume) && resume->lower.bundle;
	pthread_mutex_unlock(&resume->carrier.lock);
	return may;
}

int transport_resume_join(struct transport *transport, struct transport *fresh, uint64_t generation,
			  unsigned number)
{
	struct resume *resume = transport->resume;
	int rc = -ESTALE;

	transport_zerocopy_begin(fresh);
	/* It has the connections' bundle, and not the streams: who writes may wait for long. */
	pthread_mutex_lock(&resume->carrier.lock);
	if (resume_is_up(resume) && !resume->carrier.ending && resume->lower.bundle &&
	    atomic_load(&resume->carrier.generation) == generation)
		rc = transport_bundle_add(&resume->lower, number, fresh);
	if (rc > 0)
		atomic_store(&resume->wide, transport_is_wide(&resume->lower));
	pthread_mutex_unlock(&resume->carrier.lock);
	/* Who sleeps does not know of it. */
	sleeper_wake(&resume->reader);
	sleeper_wake(&resume->writer);
	return rc;
}

void transport_resume_joined(struct transport *transport, uint64_t generation, unsigned number)
{
	struct resume *resume = transport->resume;

	pthread_mutex_lock(&resume->carrier.lock);
	if (atomic_load(&resume->carrier.generation) == generation) {
		transport_bundle_ready(&resume->lower, number);
		atomic_store(&resume->wide, transport_is_wide(&resume->lower));
	}
	pthread_mutex_unlock(&resume->carrier.lock);
}

void transport_resume_look(struct transport *transport)
{
	resume_look(transport->resume);
}

/* ---- */

/* All of it but the lower transport. */
static void resume_free(struct resume *resume)
{
	sleeper_drop(&resume->reader);
	sleeper_drop(&resume->writer);
	retained_drop(&resume->kept);
	free(resume->ahead);
	free(resume);
}

static void resume_drop(struct transport *transport)
{
	struct resume *resume = transport->resume;

	/* It has the same descriptor. */
	resume->lower.descriptor = -1;
	transport_release(&resume->lower);
	resume_free(resume);
}

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
	.drop = resume_drop,
};

void transport_resume_let_go(struct transport *transport)
{
	sleeper_drop(&transport->resume->reader);
	sleeper_drop(&transport->resume->writer);
}

int transport_resume_wrap(struct transport *transport, const struct resume_options *options)
{
	struct resume *resume = calloc(1, sizeof(*resume));
	size_t window = options->grows ? RESUME_WINDOW_FIRST : RESUME_WINDOW_BYTES;
	unsigned lead = sizeof(struct record) + (options->bundles ? BUNDLE_HEADER_BYTES : 0);

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
	resume->carrier = (struct carrier){
		.connection = &resume->lower,
		.grace_ms = options->grace_ms,
		.closed_grace_ms = options->closed_grace_ms,
		.dial = options->dial ? dial_once : NULL,
		.opaque = resume,
	};
	carrier_init(&resume->carrier);
	*transport = (struct transport){
		.ops = &resume->ops,
		.descriptor = resume->descriptor,
		.resume = resume,
	};
	return 0;
}
