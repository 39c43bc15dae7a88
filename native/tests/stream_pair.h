/* stream_pair.h - two ends of a stream that outlives its connections, in one process; or one, whose peer is the test. */
#ifndef FARBUS_TESTS_STREAM_PAIR_H
#define FARBUS_TESTS_STREAM_PAIR_H

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../transport/resumed/resume.h"
#include "../transport/sockets/socket.h"

#undef NDEBUG

#define PATIENCE_MS 60000

/* Both ends in one process; the client's dialling is the server's being given a connection. */
struct pair {
	struct transport client;
	struct transport server;
	pthread_mutex_t lock;
	unsigned asked;
	unsigned dials;
	unsigned refusals;	/* dials to come that fail */
	bool away;		/* nobody answers any more */
	unsigned connections;	/* that a stream is to have */
	bool tcp;
};

/* Two connected sockets, of TCP over the loopback or of the Unix family. */
static inline void ends_make(bool tcp, int ends[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(address);
	int listening;

	if (!tcp) {
		assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
		return;
	}
	listening = socket(AF_INET, SOCK_STREAM, 0);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	assert(listening >= 0 && ends[0] >= 0);
	assert(bind(listening, (struct sockaddr *)&address, bytes) == 0 && listen(listening, 1) == 0);
	assert(getsockname(listening, (struct sockaddr *)&address, &bytes) == 0);
	assert(connect(ends[0], (struct sockaddr *)&address, bytes) == 0);
	ends[1] = accept(listening, NULL, NULL);
	assert(ends[1] >= 0);
	close(listening);
}

/* Give both ends further connections, as client and server do: the server first. */
static inline void pair_join(struct pair *pair, uint64_t client, uint64_t server)
{
	for (unsigned i = 1; i < pair->connections; i++) {
		struct transport near, far;
		int ends[2], number;

		ends_make(pair->tcp, ends);
		assert(transport_socket_init(&near, ends[0]) == 0);
		assert(transport_socket_init(&far, ends[1]) == 0);
		number = transport_resume_join(&pair->server, &far, server, 0);
		if (number > 0) {
			assert(number == (int)i);
			transport_resume_joined(&pair->server, server, i);
			number = transport_resume_join(&pair->client, &near, client, i);
		} else {
			transport_release(&far);
		}
		if (number < 0) {
			assert(number == -ESTALE);
			transport_release(&near);
			return;
		}
	}
}

static inline void resumed(void *opaque)
{
	struct pair *pair = opaque;
	uint64_t client = transport_resume_generation(&pair->client), server;

	pthread_mutex_lock(&pair->lock);
	server = transport_resume_generation(&pair->server);
	pthread_mutex_unlock(&pair->lock);
	pair_join(pair, client, server);
}

static inline int dial(void *opaque, uint64_t received, int left_ms, struct transport *fresh,
		uint64_t *peer_received)
{
	struct pair *pair = opaque;
	struct transport other;
	int ends[2], rc;

	(void)left_ms;
	pthread_mutex_lock(&pair->lock);
	pair->asked++;
	rc = pair->away || (pair->refusals && pair->refusals--) ? -EAGAIN : 0;
	if (!rc) {
		pair->dials++;
		ends_make(pair->tcp, ends);
		assert(transport_socket_init(fresh, ends[0]) == 0);
		assert(transport_socket_init(&other, ends[1]) == 0);
		rc = transport_resume_hold(&pair->server, received, peer_received);
		if (!rc)
			rc = transport_resume_adopt(&pair->server, &other, received);
		else
			transport_release(&other);
		if (rc)
			transport_release(fresh);
	}
	pthread_mutex_unlock(&pair->lock);
	return rc;
}

static inline void bundle_make_over(bool tcp, struct pair *pair, uint32_t grace_ms, bool grows, bool prompt, unsigned connections)
{
	struct resume_options options = {
		.grace_ms = grace_ms, .closed_grace_ms = grace_ms, .grows = grows, .prompt = prompt, .dial = dial,
		.bundles = connections > 0, .resumed = resumed, .opaque = pair,
	};
	int ends[2];

	memset(pair, 0, sizeof(*pair));
	pair->connections = connections;
	pair->tcp = tcp;
	pthread_mutex_init(&pair->lock, NULL);
	ends_make(tcp, ends);
	assert(transport_socket_init(&pair->client, ends[0]) == 0);
	assert(transport_socket_init(&pair->server, ends[1]) == 0);
	assert(transport_resume_wrap(&pair->client, &options) == 0);
	options.dial = NULL;
	assert(transport_resume_wrap(&pair->server, &options) == 0);
	pair_join(pair, 0, 0);
}

static inline void bundle_make(struct pair *pair, uint32_t grace_ms, bool grows, bool prompt, unsigned connections)
{
	bundle_make_over(false, pair, grace_ms, grows, prompt, connections);
}

static inline void pair_make(struct pair *pair, uint32_t grace_ms, bool grows)
{
	bundle_make(pair, grace_ms, grows, false, 0);
}

static inline uint8_t pattern(size_t at)
{
	return (uint8_t)(at * 2654435761u >> 27);
}

static inline void yield(void)
{
	for (int i = 0; i < 20; i++)
		sched_yield();
}

struct record_header {
	uint32_t length;
	uint32_t acknowledged;
};

static const struct resume_options plain __attribute__((unused)) = { .grace_ms = PATIENCE_MS, .closed_grace_ms = PATIENCE_MS };
static const struct resume_options growing __attribute__((unused)) = {
	.grace_ms = PATIENCE_MS, .closed_grace_ms = PATIENCE_MS, .grows = true, .prompt = true,
};

/* One end of a stream, whose peer is the test. */
static inline int alone_make(struct transport *transport, const struct resume_options *options)
{
	int ends[2];

	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	assert(transport_socket_init(transport, ends[0]) == 0);
	assert(transport_resume_wrap(transport, options) == 0);
	return ends[1];
}

static inline void *read_to_nowhere(void *opaque)
{
	int descriptor = *(int *)opaque;
	char bytes[1 << 16];

	while (read(descriptor, bytes, sizeof(bytes)) > 0)
		;
	return NULL;
}

struct reading {
	struct transport *transport;
	uint8_t *bytes;
	size_t count;
};

static inline void *read_some(void *opaque)
{
	struct reading *reading = opaque;

	assert(transport_read_all(reading->transport, reading->bytes, reading->count, PATIENCE_MS) == 0);
	return NULL;
}

/* Write so much while the server reads it; its answer acknowledges all of it. */
static inline void exchange(struct pair *pair, const uint8_t *bytes, size_t count)
{
	struct reading reading = { .transport = &pair->server, .bytes = malloc(count), .count = count };
	pthread_t thread;
	char answer;

	assert(pthread_create(&thread, NULL, read_some, &reading) == 0);
	assert(transport_write_all(&pair->client, bytes, count) == 0);
	pthread_join(thread, NULL);
	assert(memcmp(reading.bytes, bytes, count) == 0);
	free(reading.bytes);
	assert(transport_write_all(&pair->server, "a", 1) == 0);
	assert(transport_read_all(&pair->client, &answer, 1, PATIENCE_MS) == 0);
}

/* Where everything is acknowledged, there is room for a whole window. */
static inline size_t window_of(struct transport *transport)
{
	void *at;

	return (size_t)transport->ops->room(transport, &at, SIZE_MAX / 2);
}

/* Write so many bytes in place, and return where they lie. */
static inline uint8_t *make(struct transport *transport, size_t bytes, size_t from)
{
	uint8_t *at;

	assert(transport->ops->room(transport, (void **)&at, bytes) == (ssize_t)bytes);
	for (size_t i = 0; i < bytes; i++)
		at[i] = pattern(from + i);
	assert(transport->ops->written(transport, bytes, true) == 0);
	return at;
}

static inline void assert_pattern(const uint8_t *bytes, size_t count, size_t from)
{
	for (size_t i = 0; i < count; i++)
		assert(bytes[i] == pattern(from + i));
}

#endif
