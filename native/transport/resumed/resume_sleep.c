/* Who waits until the connection has something: bytes, room, or what another thread has taken from it (resume_stream.h).
 *
 * One of two threads may take from the connection what the other sleeps for, and poll(2) then sleeps on: so each
 * sleeps on an eventfd(2) too, by which the other wakes it. */
#include "../sockets/bundle.h"
#include "../sockets/socket.h"
#include "resume_stream.h"

#include <errno.h>
#include <poll.h>

void resume_look(struct resume *resume)
{
	int all[BUNDLE_CONNECTIONS] = { resume->descriptor };
	unsigned count = 1;

	pthread_mutex_lock(&resume->carrier.lock);
	if (resume_is_up(resume) && silence_is_due(&resume->silence)) {
		if (resume->lower.bundle)
			count = transport_bundle_all(&resume->lower, all);
		if (silence_is_found(&resume->silence, all, count))
			carrier_cut_locked(&resume->carrier, -ETIMEDOUT);
	}
	pthread_mutex_unlock(&resume->carrier.lock);
}

bool resume_lower_has(struct resume *resume)
{
	bool has;

	if (!atomic_load(&resume->buffers))
		return false;
	pthread_mutex_lock(&resume->in);
	has = resume_is_up(resume) && resume->lower.ops->wait(&resume->lower, 0) == 0;
	pthread_mutex_unlock(&resume->in);
	return has;
}

/* All connections, for none of which anybody may look for long: what was written to one may be lost
 * with it, and the peer read from that one. */
static unsigned others(struct resume *resume, struct pollfd *on)
{
	int all[BUNDLE_CONNECTIONS];
	unsigned count = 0;

	pthread_mutex_lock(&resume->carrier.lock);
	if (resume_is_up(resume) && resume->lower.bundle)
		count = transport_bundle_all(&resume->lower, all);
	pthread_mutex_unlock(&resume->carrier.lock);
	/* Errors are told unasked. */
	for (unsigned i = 0; i < count; i++)
		on[i] = (struct pollfd){ .fd = all[i] };
	return count;
}

/* Take what the kernel has told of what it has sent, if nobody else has by now. */
static void lower_hear(struct resume *resume)
{
	/* Under this lock no other connection takes its place. */
	pthread_mutex_lock(&resume->carrier.lock);
	if (resume_is_up(resume) && resume->lower.ops->hear)
		(void)resume->lower.ops->hear(&resume->lower);
	pthread_mutex_unlock(&resume->carrier.lock);
}

int resume_sleep(struct resume *resume, struct sleeper *self, bool (*has)(struct resume *), int timeout_ms)
{
	struct pollfd poll_on[3 + BUNDLE_CONNECTIONS] = {
		{ .events = POLLIN },
		{ .fd = self->wake, .events = POLLIN },
	};
	/* Where the kernel tells of sends, that alone is no error: one of TCP ends the connection, and is POLLHUP, too. */
	const short quiet = atomic_load(&resume->hears) ? POLLERR : 0;
	uint64_t generation = atomic_load(&resume->carrier.generation);
	unsigned count = 2, lost;
	short told = 0;
	int rc = 0;

	carrier_sleep_begin(&resume->carrier);
	atomic_store(&self->asleep, true);
	poll_on[0].fd = atomic_load(&resume->reading);
	if (atomic_load(&resume->due))
		poll_on[count++] = (struct pollfd){ .fd = atomic_load(&resume->writing), .events = POLLOUT };
	lost = count;
	if (resume->options.bundles)
		count += others(resume, poll_on + count);
	if (resume_is_up(resume) && !has(resume))
		rc = transport_poll_all(poll_on, count, timeout_ms);
	for (unsigned i = 0; i < count; i++)
		told |= poll_on[i].revents;
	if (told & quiet)
		lower_hear(resume);
	if (told && told == quiet)
		rc = -EAGAIN;
	for (unsigned i = lost; i < count && !poll_on[0].revents; i++)
		if (poll_on[i].revents & ~quiet)
			carrier_cut(&resume->carrier, generation, -ECONNRESET);
	sleeper_awake(self, poll_on[1].revents);
	carrier_sleep_end(&resume->carrier);
	return rc;
}
