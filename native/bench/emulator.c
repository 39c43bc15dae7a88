/* Each direction of a connection is a line: a reader stamps what comes with the time
 * at which it is due at the other end, a writer delivers it then.  A byte leaves when
 * those before it have (the rate) and arrives half a round trip later (the delay), so
 * that pipelining helps exactly as it does on a wire.  What a line holds is limited, as
 * a window is: a sender that is faster than the rate has to wait. */
#include "emulator.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../transport/transport.h"

#define CHUNK_BYTES (64u << 10)
#define CHUNKS 1024u			/* 64 MiB: 10 Gbit/s for 50 ms */
/* A sleep may end this much late; the rest is spent looking at the clock. */
#define SLEEP_SLACK_NS 80000u

struct chunk {
	uint64_t due_ns;
	size_t bytes;
	uint8_t *data;
};

/* What all connections share of one direction. */
struct link {
	pthread_mutex_t lock;
	uint64_t free_ns;		/* when it has sent what it was given */
};

struct line {
	const struct emulated *network;
	struct link *link;
	int from;
	int to;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct chunk chunks[CHUNKS];
	size_t first;
	size_t count;
	bool ended;
};

static void wait_until(uint64_t due_ns)
{
	uint64_t now;

	while ((now = transport_now_ns()) < due_ns) {
		uint64_t left = due_ns - now;
		struct timespec sleep = { .tv_nsec = 0 };

		if (left > SLEEP_SLACK_NS) {
			left -= SLEEP_SLACK_NS;
			sleep.tv_sec = (time_t)(left / 1000000000u);
			sleep.tv_nsec = (long)(left % 1000000000u);
			nanosleep(&sleep, NULL);
		} else {
			sched_yield();
		}
	}
}

static void *line_write(void *opaque)
{
	struct line *line = opaque;

	for (;;) {
		struct chunk *chunk;
		size_t at = 0;

		pthread_mutex_lock(&line->lock);
		while (!line->count && !line->ended)
			pthread_cond_wait(&line->changed, &line->lock);
		chunk = line->count ? &line->chunks[line->first] : NULL;
		pthread_mutex_unlock(&line->lock);
		if (!chunk)
			break;
		wait_until(chunk->due_ns);
		while (at < chunk->bytes) {
			ssize_t sent = send(line->to, chunk->data + at, chunk->bytes - at, MSG_NOSIGNAL);

			if (sent <= 0) {
				shutdown(line->from, SHUT_RDWR);
				return NULL;
			}
			at += (size_t)sent;
		}
		pthread_mutex_lock(&line->lock);
		line->first = (line->first + 1) % CHUNKS;
		line->count--;
		pthread_cond_signal(&line->changed);
		pthread_mutex_unlock(&line->lock);
	}
	shutdown(line->to, SHUT_WR);
	return NULL;
}

/* When so many bytes have left, from now on and behind those before. */
static uint64_t sent_by(uint64_t *free_ns, uint64_t now, size_t bytes, double gbps)
{
	if (*free_ns < now)
		*free_ns = now;
	if (gbps > 0)
		*free_ns += (uint64_t)((double)bytes * 8 / gbps);
	return *free_ns;
}

static void *line_read(void *opaque)
{
	struct line *line = opaque;
	uint64_t free_ns = 0;		/* when the wire has sent what it was given */
	ssize_t got = 1;

	while (got > 0) {
		struct chunk *chunk;
		uint64_t now, shared_ns;

		pthread_mutex_lock(&line->lock);
		while (line->count == CHUNKS)
			pthread_cond_wait(&line->changed, &line->lock);
		chunk = &line->chunks[(line->first + line->count) % CHUNKS];
		pthread_mutex_unlock(&line->lock);
		if (!chunk->data && !(chunk->data = malloc(CHUNK_BYTES)))
			break;
		got = recv(line->from, chunk->data, CHUNK_BYTES, 0);
		if (got <= 0)
			break;
		now = transport_now_ns();
		sent_by(&free_ns, now, (size_t)got, line->network->connection_gbps);
		pthread_mutex_lock(&line->link->lock);
		shared_ns = sent_by(&line->link->free_ns, now, (size_t)got, line->network->gbps);
		pthread_mutex_unlock(&line->link->lock);
		chunk->bytes = (size_t)got;
		chunk->due_ns = (free_ns > shared_ns ? free_ns : shared_ns) + line->network->rtt_ns / 2;
		pthread_mutex_lock(&line->lock);
		line->count++;
		pthread_cond_signal(&line->changed);
		pthread_mutex_unlock(&line->lock);
	}
	pthread_mutex_lock(&line->lock);
	line->ended = true;
	pthread_cond_signal(&line->changed);
	pthread_mutex_unlock(&line->lock);
	return NULL;
}

static void line_start(const struct emulated *network, struct link *link, int from, int to)
{
	struct line *line = calloc(1, sizeof(*line));
	pthread_t thread;

	if (!line)
		_exit(1);
	line->network = network;
	line->link = link;
	line->from = from;
	line->to = to;
	pthread_mutex_init(&line->lock, NULL);
	pthread_cond_init(&line->changed, NULL);
	/* Lines end with the process: it serves one measurement. */
	if (pthread_create(&thread, NULL, line_read, line) ||
	    pthread_create(&thread, NULL, line_write, line))
		_exit(1);
}

static void emulate(const struct emulated *network, int listener, const struct sockaddr_in *target)
{
	static struct link links[2] = { { .lock = PTHREAD_MUTEX_INITIALIZER }, { .lock = PTHREAD_MUTEX_INITIALIZER } };

	for (;;) {
		int client = accept(listener, NULL, NULL), one = 1;
		int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (client < 0 || server < 0)
			_exit(1);
		if (connect(server, (const struct sockaddr *)target, sizeof(*target)) < 0) {
			close(client);
			close(server);
			continue;
		}
		setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		line_start(network, &links[0], client, server);
		line_start(network, &links[1], server, client);
	}
}

int emulator_start(const struct emulated *network, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct sockaddr_in target = address;
	socklen_t size = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;
	pid_t child, parent = getpid();

	target.sin_port = htons(port);
	if (listener < 0)
		return -errno;
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(listener, 16) < 0 ||
	    getsockname(listener, (struct sockaddr *)&address, &size) < 0)
		rc = -errno;
	child = rc ? -1 : fork();
	if (!rc && child < 0)
		rc = -errno;
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		emulate(network, listener, &target);
	}
	close(listener);
	return rc ? rc : ntohs(address.sin_port);
}
