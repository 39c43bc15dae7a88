/* Streams that outlive their connections: order, windows, loans, ends; and impossible peers. */
#include <assert.h>
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../transport/bundle.h"
#include "../transport/crew.h"
#include "../transport/resume.h"
#include "../transport/socket.h"
#include "../transport/zerocopy.h"
#include "kernel.h"

#undef NDEBUG

#define PATIENCE_MS 60000
#define STREAM_BYTES ((size_t)96 << 20)

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
static void ends_make(bool tcp, int ends[2])
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
static void pair_join(struct pair *pair, uint64_t client, uint64_t server)
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

static void resumed(void *opaque)
{
	struct pair *pair = opaque;
	uint64_t client = transport_resume_generation(&pair->client), server;

	pthread_mutex_lock(&pair->lock);
	server = transport_resume_generation(&pair->server);
	pthread_mutex_unlock(&pair->lock);
	pair_join(pair, client, server);
}

static int dial(void *opaque, uint64_t received, int left_ms, struct transport *fresh,
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

static void bundle_make_over(bool tcp, struct pair *pair, uint32_t grace_ms, bool grows, bool prompt, unsigned connections)
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

static void bundle_make(struct pair *pair, uint32_t grace_ms, bool grows, bool prompt, unsigned connections)
{
	bundle_make_over(false, pair, grace_ms, grows, prompt, connections);
}

static void pair_make(struct pair *pair, uint32_t grace_ms, bool grows)
{
	bundle_make(pair, grace_ms, grows, false, 0);
}

static uint8_t pattern(size_t at)
{
	return (uint8_t)(at * 2654435761u >> 27);
}

static uint32_t random_next(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

struct end {
	struct transport *transport;
	uint32_t seed;
	bool lends;
	bool in_place;
	_Atomic bool *done;
};

/* Writes of all sizes, by every way there is. */
static void *write_all(void *opaque)
{
	struct end *end = opaque;
	struct transport *transport = end->transport;
	uint8_t *bytes = malloc(1 << 20);
	size_t at = 0;

	while (at < STREAM_BYTES) {
		size_t now = random_next(&end->seed) % (random_next(&end->seed) % 4 ? 300 : 1 << 20) + 1;

		if (now > STREAM_BYTES - at)
			now = STREAM_BYTES - at;
		if (end->in_place && random_next(&end->seed) % 2) {
			void *where;
			ssize_t room = transport->ops->room(transport, &where, now);

			assert(room > 0);
			for (ssize_t i = 0; i < room; i++)
				((uint8_t *)where)[i] = pattern(at + (size_t)i);
			assert(transport->ops->written(transport, (size_t)room, false) == 0);
			at += (size_t)room;
			continue;
		}
		for (size_t i = 0; i < now; i++)
			bytes[i] = pattern(at + i);
		struct iovec vector[2] = {
			{ .iov_base = bytes, .iov_len = now / 3 },
			{ .iov_base = bytes + now / 3, .iov_len = now - now / 3 },
		};
		assert((end->lends ? transport->ops->lend : transport->ops->write)(transport, vector, 2) == 0);
		/* From here on the memory is ours, and is written to. */
		if (end->lends)
			transport->ops->settle(transport, bytes, now);
		at += now;
	}
	free(bytes);
	return NULL;
}

static void *read_all(void *opaque)
{
	struct end *end = opaque;
	uint8_t *bytes = malloc(1 << 20);
	size_t at = 0;

	while (at < STREAM_BYTES) {
		size_t now = random_next(&end->seed) % (1 << 20) + 1;

		if (now > STREAM_BYTES - at)
			now = STREAM_BYTES - at;
		assert(transport_read_all(end->transport, bytes, now, PATIENCE_MS) == 0);
		for (size_t i = 0; i < now; i++)
			assert(bytes[i] == pattern(at + i));
		at += now;
	}
	free(bytes);
	atomic_store(end->done, true);
	return NULL;
}

static void both_streams_arrive_whole_however_often_they_are_cut(bool tcp, bool grows, unsigned connections)
{
	_Atomic bool done[2] = { false, false };
	/* Never freed: the thread that dials may still be at it when all has arrived. */
	struct pair *pair = malloc(sizeof(*pair));
	struct end ends[4] = {
		{ &pair->client, 1, true, false, NULL }, { &pair->server, 2, false, true, NULL },
		{ &pair->server, 3, false, false, &done[0] }, { &pair->client, 4, false, false, &done[1] },
	};
	pthread_t threads[4];
	unsigned cuts = 0, dials;
	uint32_t seed = 5;

	assert(pair);
	bundle_make_over(tcp, pair, PATIENCE_MS, grows, grows, connections);
	for (int i = 0; i < 4; i++)
		assert(pthread_create(&threads[i], NULL, i < 2 ? write_all : read_all, &ends[i]) == 0);
	while (!atomic_load(&done[0]) || !atomic_load(&done[1])) {
		char none;

		usleep(random_next(&seed) % 4000);
		/* Who dials must hear of a cut, though there is nothing more to read. */
		if (atomic_load(&done[1]))
			assert(pair->client.ops->read(&pair->client, &none, 1) == -EAGAIN);
		pthread_mutex_lock(&pair->lock);
		pair->refusals = random_next(&seed) % 8 ? 0 : 1;
		pthread_mutex_unlock(&pair->lock);
		/* Either end, one direction or both. */
		shutdown(random_next(&seed) % 2 ? pair->client.descriptor : pair->server.descriptor,
			 (int)(random_next(&seed) % 3));
		cuts++;
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	pthread_mutex_lock(&pair->lock);
	dials = pair->dials;
	pthread_mutex_unlock(&pair->lock);
	assert(dials > 3);
	fprintf(stderr, "%u cuts, %u connections\n", cuts, dials);
	pair->client.ops->shutdown(&pair->client);
	pair->server.ops->shutdown(&pair->server);
}

static void test_both_streams_arrive_whole_however_often_they_are_cut(bool grows, unsigned connections)
{
	both_streams_arrive_whole_however_often_they_are_cut(false, grows, connections);
}

/* What the kernel of a connection that was cut still has of the ring is sent over the next one, and what is then written there is
 * not taken for it. */
static void test_the_same_of_what_the_kernel_sends_from_where_it_lies(bool grows, unsigned connections)
{
	uint64_t before = zerocopy_bytes(true);

	zerocopy_set_stubborn(true);
	both_streams_arrive_whole_however_often_they_are_cut(true, grows, connections);
	zerocopy_set_stubborn(false);
	assert(zerocopy_bytes(true) - before > STREAM_BYTES / 4 || !kernel_has_zerocopy());
}

struct bytes_read {
	struct transport *transport;
	_Atomic unsigned count;
};

static void *read_rounds(void *opaque)
{
	const struct sched_param none = { 0 };
	struct bytes_read *bytes = opaque;
	char byte;

	/* Woken, it lets the other thread go on first. */
	(void)sched_setscheduler(0, SCHED_BATCH, &none);
	while (transport_read_all(bytes->transport, &byte, 1, PATIENCE_MS) == 0)
		atomic_fetch_add(&bytes->count, 1);
	return NULL;
}

static void yield(void)
{
	for (int i = 0; i < 20; i++)
		sched_yield();
}

/* Who sleeps on a connection is awake before another has its number: poll(2) looks the number up again
 * when it is woken, and would sleep on. */
static void test_who_sleeps_meets_the_new_connection(void)
{
	const struct { uint32_t length, acknowledged; char byte; } __attribute__((packed)) record = { 1, 0, 'x' };
	struct bytes_read bytes = { 0 };
	cpu_set_t before, one;
	struct pair pair;
	pthread_t thread;
	int last = -1;

	pair_make(&pair, PATIENCE_MS, false);
	pair.away = true;
	bytes.transport = &pair.server;
	assert(sched_getaffinity(0, sizeof(before), &before) == 0);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	(void)sched_setaffinity(0, sizeof(one), &one);
	assert(pthread_create(&thread, NULL, read_rounds, &bytes) == 0);
	alarm(PATIENCE_MS / 1000);
	for (unsigned round = 1; round <= 100; round++) {
		struct transport fresh;
		uint64_t received;
		int ends[2];

		yield();	/* asleep on the connection before */
		assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
		assert(transport_socket_init(&fresh, ends[0]) == 0);
		assert(transport_resume_hold(&pair.server, 0, &received) == 0 && received == round - 1);
		assert(transport_resume_adopt(&pair.server, &fresh, 0) == 0);
		yield();	/* and on this one, which has nothing yet */
		assert(write(ends[1], &record, sizeof(record)) == sizeof(record));
		while (atomic_load(&bytes.count) < round)
			sched_yield();
		/* Only now: to the server the connection before was alive. */
		close(last);
		last = ends[1];
	}
	alarm(0);
	pair.client.ops->shutdown(&pair.client);
	pair.server.ops->shutdown(&pair.server);
	pthread_join(thread, NULL);
	(void)sched_setaffinity(0, sizeof(before), &before);
}

/* Both threads of a test on this processor, until the mask that it returns is set again. */
static cpu_set_t one_processor(void)
{
	cpu_set_t before, one;

	assert(sched_getaffinity(0, sizeof(before), &before) == 0);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	(void)sched_setaffinity(0, sizeof(one), &one);
	return before;
}

struct record_header {
	uint32_t length;
	uint32_t acknowledged;
};

static const struct resume_options plain = { .grace_ms = PATIENCE_MS, .closed_grace_ms = PATIENCE_MS };
static const struct resume_options growing = {
	.grace_ms = PATIENCE_MS, .closed_grace_ms = PATIENCE_MS, .grows = true, .prompt = true,
};

/* One end of a stream, whose peer is the test. */
static int alone_make(struct transport *transport, const struct resume_options *options)
{
	int ends[2];

	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	assert(transport_socket_init(transport, ends[0]) == 0);
	assert(transport_resume_wrap(transport, options) == 0);
	return ends[1];
}

struct windows_written {
	struct transport *transport;
	_Atomic unsigned count;
};

static void *write_windows(void *opaque)
{
	const struct sched_param none = { 0 };
	struct windows_written *written = opaque;
	uint8_t *bytes = calloc(1, RESUME_WINDOW_BYTES);

	/* Woken, it lets the other thread go on first. */
	(void)sched_setscheduler(0, SCHED_BATCH, &none);
	while (transport_write_all(written->transport, bytes, RESUME_WINDOW_BYTES) == 0)
		atomic_fetch_add(&written->count, 1);
	free(bytes);
	return NULL;
}

static void *read_to_nowhere(void *opaque)
{
	int descriptor = *(int *)opaque;
	char bytes[1 << 16];

	while (read(descriptor, bytes, sizeof(bytes)) > 0)
		;
	return NULL;
}

/* Who waits for room hears of the acknowledgement that another thread has taken. */
static void test_a_reader_wakes_the_writer_whose_acknowledgement_it_took(void)
{
	cpu_set_t before = one_processor();
	struct windows_written written = { 0 };
	struct transport transport;
	pthread_t writer, peer;
	int end = alone_make(&transport, &plain);
	char byte;

	written.transport = &transport;
	assert(pthread_create(&peer, NULL, read_to_nowhere, &end) == 0);
	assert(pthread_create(&writer, NULL, write_windows, &written) == 0);
	alarm(PATIENCE_MS / 1000);
	for (unsigned round = 1; round <= 30; round++) {
		const struct record_header record = { 0, round * RESUME_WINDOW_BYTES };

		/* One window is written, the writer of the next sleeps. */
		while (atomic_load(&written.count) < round)
			sched_yield();
		yield();
		assert(write(end, &record, sizeof(record)) == sizeof(record));
		assert(transport.ops->read(&transport, &byte, 1) == -EAGAIN);
	}
	while (atomic_load(&written.count) < 31)
		sched_yield();
	alarm(0);
	transport.ops->shutdown(&transport);
	pthread_join(writer, NULL);
	pthread_join(peer, NULL);
	close(end);
	(void)sched_setaffinity(0, sizeof(before), &before);
}

/* Who sleeps for bytes hears of those that a writer without room has read ahead. */
static void test_a_writer_wakes_the_reader_whose_bytes_it_took(void)
{
	cpu_set_t before = one_processor();
	struct bytes_read bytes = { 0 };
	struct windows_written written = { 0 };
	struct transport transport;
	pthread_t reader, writer, peer;
	int end = alone_make(&transport, &plain);

	bytes.transport = written.transport = &transport;
	assert(pthread_create(&peer, NULL, read_to_nowhere, &end) == 0);
	assert(pthread_create(&reader, NULL, read_rounds, &bytes) == 0);
	assert(pthread_create(&writer, NULL, write_windows, &written) == 0);
	while (atomic_load(&written.count) < 1)
		sched_yield();
	alarm(PATIENCE_MS / 1000);
	for (unsigned round = 1; round <= 100; round++) {
		const struct { struct record_header header; char byte; } __attribute__((packed)) record = {
			{ 1, RESUME_WINDOW_BYTES }, 'x'
		};

		/* Both sleep on the connection, and either may come first. */
		yield();
		assert(write(end, &record, sizeof(record)) == sizeof(record));
		while (atomic_load(&bytes.count) < round)
			sched_yield();
	}
	alarm(0);
	transport.ops->shutdown(&transport);
	pthread_join(reader, NULL);
	pthread_join(writer, NULL);
	pthread_join(peer, NULL);
	close(end);
	(void)sched_setaffinity(0, sizeof(before), &before);
}

struct cancelled_wait {
	struct transport *transport;
	bool ended;
};

static void *wait_cancelled(void *opaque)
{
	struct cancelled_wait *wait = opaque;

	pthread_cancel(pthread_self());
	assert(wait->transport->ops->wait(wait->transport, 0) == 0);
	wait->ended = true;
	pthread_testcancel();
	return NULL;
}

/* Have whoever sleeps look again, as another thread of the stream's would. */
static void wake_all(void)
{
	const uint64_t one = 1;
	char link[32], target[64];

	for (int descriptor = 0; descriptor < 256; descriptor++) {
		ssize_t length;

		(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
		length = readlink(link, target, sizeof(target));
		if (length > 0 && strncmp(target, "anon_inode:[eventfd]", (size_t)length) == 0)
			assert(write(descriptor, &one, sizeof(one)) == sizeof(one));
	}
}

/* It is the one who reads for all others: it must come back from waiting, also where it was woken for what another has read. */
static void test_a_thread_that_is_cancelled_ends_behind_its_wait(void)
{
	struct transport transport;
	struct cancelled_wait wait = { .transport = &transport };
	pthread_t thread;
	void *result;
	int end = alone_make(&transport, &plain);

	wake_all();
	assert(pthread_create(&thread, NULL, wait_cancelled, &wait) == 0);
	pthread_join(thread, &result);
	assert(result == PTHREAD_CANCELED);
	assert(wait.ended);
	transport.ops->shutdown(&transport);
	close(end);
}

static void test_two_writers_whom_nobody_reads_do_not_wait_for_each_other(void)
{
	/* More than the sockets hold in either direction, and less than the windows. */
	const size_t bytes = RESUME_WINDOW_BYTES - 1000;
	uint8_t *sent = calloc(1, bytes), *got = malloc(bytes);
	struct pair pair;

	pair_make(&pair, PATIENCE_MS, false);
	/* While it is cut, the window takes all; it is sent again once both are back. */
	pthread_mutex_lock(&pair.lock);
	shutdown(pair.client.descriptor, SHUT_RDWR);
	assert(pair.client.ops->read(&pair.client, got, 1) == -EAGAIN);
	assert(transport_write_all(&pair.client, sent, bytes) == 0);
	assert(transport_write_all(&pair.server, sent, bytes) == 0);
	pthread_mutex_unlock(&pair.lock);
	assert(transport_read_all(&pair.server, got, bytes, PATIENCE_MS) == 0);
	assert(transport_read_all(&pair.client, got, bytes, PATIENCE_MS) == 0);
	pair.client.ops->shutdown(&pair.client);
	pair.server.ops->shutdown(&pair.server);
	free(sent);
	free(got);
}

struct reading {
	struct transport *transport;
	uint8_t *bytes;
	size_t count;
};

static void *read_some(void *opaque)
{
	struct reading *reading = opaque;

	assert(transport_read_all(reading->transport, reading->bytes, reading->count, PATIENCE_MS) == 0);
	return NULL;
}

/* Write so much while the server reads it; its answer acknowledges all of it. */
static void exchange(struct pair *pair, const uint8_t *bytes, size_t count)
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

/* Nor is it an end, or something to read, when the kernel tells of what it has sent. */
static void test_who_waits_waits_on_when_the_kernel_tells_of_sends(unsigned connections)
{
	const size_t count = 4 << 20;
	uint8_t *bytes = calloc(1, count);
	struct pair pair;
	char byte;

	zerocopy_set_stubborn(true);
	bundle_make_over(true, &pair, PATIENCE_MS, true, false, connections);
	for (int round = 0; round < 3; round++) {
		exchange(&pair, bytes, count);
		assert(pair.client.ops->wait(&pair.client, 20) == -ETIMEDOUT);
		/* Who sleeps would only be woken again. */
		assert(transport_poll(pair.client.descriptor, 0, 0) == -ETIMEDOUT);
		assert(pair.client.ops->read(&pair.client, &byte, 1) == -EAGAIN);
	}
	assert(pair.dials == 0);
	zerocopy_set_stubborn(false);
	free(bytes);
	pair.client.ops->shutdown(&pair.client);
	pair.server.ops->shutdown(&pair.server);
}

/* Where everything is acknowledged, there is room for a whole window. */
static size_t window_of(struct transport *transport)
{
	void *at;

	return (size_t)transport->ops->room(transport, &at, SIZE_MAX / 2);
}

static void test_a_window_grows_with_what_the_network_holds(void)
{
	const size_t bytes = RESUME_WINDOW_FIRST - (RESUME_WINDOW_FIRST >> 2);
	uint8_t *sent = malloc(4 * RESUME_WINDOW_FIRST);
	/* What is left is not acknowledged, whatever is. */
	const size_t left = 4096;
	struct reading reading = { .count = RESUME_WINDOW_FIRST - left };
	uint8_t *first, *second;
	pthread_t thread;
	struct pair pair;

	for (size_t i = 0; i < 4 * RESUME_WINDOW_FIRST; i++)
		sent[i] = pattern(i);
	pair_make(&pair, PATIENCE_MS, true);
	assert(window_of(&pair.client) == RESUME_WINDOW_FIRST);
	/* The first round, so the shortest: the network holds what was acknowledged in it. */
	exchange(&pair, sent, bytes);
	reading.transport = &pair.server;
	reading.bytes = malloc(reading.count);
	assert(pair.client.ops->room(&pair.client, (void **)&first, SIZE_MAX / 2) == 2 * RESUME_WINDOW_FIRST);
	memcpy(first, sent, RESUME_WINDOW_FIRST);
	assert(pthread_create(&thread, NULL, read_some, &reading) == 0);
	assert(pair.client.ops->written(&pair.client, RESUME_WINDOW_FIRST, false) == 0);
	pthread_join(thread, NULL);
	assert(memcmp(reading.bytes, sent, reading.count) == 0);
	free(reading.bytes);
	/* There is room for as much behind it. */
	assert(pair.client.ops->room(&pair.client, (void **)&second, SIZE_MAX / 2) == RESUME_WINDOW_FIRST);
	assert(second - first == RESUME_WINDOW_FIRST);
	assert(transport_read_all(&pair.server, sent, left, PATIENCE_MS) == 0);
	exchange(&pair, sent, 4 * RESUME_WINDOW_FIRST);
	pair.client.ops->shutdown(&pair.client);
	pair.server.ops->shutdown(&pair.server);
	/* A peer that knows nothing of it has the window that it always had. */
	pair_make(&pair, PATIENCE_MS, false);
	exchange(&pair, sent, bytes);
	assert(window_of(&pair.client) == RESUME_WINDOW_BYTES);
	pair.client.ops->shutdown(&pair.client);
	pair.server.ops->shutdown(&pair.server);
	/* A server begins with less where its client acknowledges often, and the client as ever. */
	bundle_make(&pair, PATIENCE_MS, true, true, 0);
	assert(window_of(&pair.server) == RESUME_WINDOW_RING);
	assert(window_of(&pair.client) == RESUME_WINDOW_FIRST);
	pair.client.ops->shutdown(&pair.client);
	pair.server.ops->shutdown(&pair.server);
	bundle_make(&pair, PATIENCE_MS, true, false, 0);
	assert(window_of(&pair.server) == RESUME_WINDOW_FIRST);
	pair.client.ops->shutdown(&pair.client);
	pair.server.ops->shutdown(&pair.server);
	free(sent);
}

static void test_after_the_grace_time_reading_and_writing_are_errors(void)
{
	uint8_t *bytes = calloc(1, RESUME_WINDOW_BYTES);
	struct pair pair;

	pair_make(&pair, 50, false);
	pthread_mutex_lock(&pair.lock);
	pair.away = true;
	pthread_mutex_unlock(&pair.lock);
	shutdown(pair.client.descriptor, SHUT_RDWR);
	assert(transport_read_all(&pair.client, bytes, 1, PATIENCE_MS) == -ETIMEDOUT);
	assert(transport_read_all(&pair.server, bytes, 1, PATIENCE_MS) == -ETIMEDOUT);
	assert(transport_write_all(&pair.client, bytes, 1) == -EPIPE);
	assert(transport_write_all(&pair.server, bytes, RESUME_WINDOW_BYTES) == -EPIPE);
	free(bytes);
}

static void test_an_end_that_is_said_is_not_waited_for(void)
{
	struct pair pair;
	char byte;

	pair_make(&pair, PATIENCE_MS, false);
	assert(transport_write_all(&pair.client, "x", 1) == 0);
	pair.client.ops->shutdown(&pair.client);
	assert(transport_read_all(&pair.server, &byte, 1, PATIENCE_MS) == 0 && byte == 'x');
	assert(transport_read_all(&pair.server, &byte, 1, PATIENCE_MS) == -EPIPE);
	assert(pair.client.ops->read(&pair.client, &byte, 1) == -EPIPE);
	assert(pair.dials == 0);
}

static struct pair *ending;
static const struct transport_ops *ending_below;

/* The peer hangs up as soon as it has heard of the end, and this side's reader sees that first. */
static int write_and_hear_the_end(struct transport *transport, struct iovec *vector, int count)
{
	const bool end = *(const uint32_t *)vector[0].iov_base == UINT32_MAX;
	int rc = ending_below->write(transport, vector, count);
	char byte;

	if (!end)
		return rc;
	shutdown(ending->server.descriptor, SHUT_RDWR);
	assert(ending->client.ops->wait(&ending->client, PATIENCE_MS) == 0);
	(void)ending->client.ops->read(&ending->client, &byte, 1);
	yield();
	return rc;
}

static void test_who_has_said_the_end_dials_nobody(void)
{
	struct resume_options options = { .grace_ms = PATIENCE_MS, .closed_grace_ms = PATIENCE_MS, .dial = dial };
	struct transport_ops ops;
	struct pair pair = { 0 };
	int ends[2];

	pthread_mutex_init(&pair.lock, NULL);
	options.opaque = &pair;
	ending = &pair;
	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	assert(transport_socket_init(&pair.client, ends[0]) == 0);
	assert(transport_socket_init(&pair.server, ends[1]) == 0);
	ending_below = pair.client.ops;
	ops = *ending_below;
	ops.write = write_and_hear_the_end;
	pair.client.ops = &ops;
	pair.away = true;
	assert(transport_resume_wrap(&pair.client, &options) == 0);
	pair.client.ops->shutdown(&pair.client);
	assert(pair.asked == 0);
}

static void test_a_peer_can_t_have_what_was_never_sent(void)
{
	uint64_t received = 77;
	struct pair pair;
	char byte;

	pair_make(&pair, PATIENCE_MS, false);
	assert(transport_write_all(&pair.server, "xy", 2) == 0);
	assert(transport_resume_hold(&pair.server, 3, &received) == -EPROTO);
	assert(transport_resume_hold(&pair.server, ~0ull, &received) == -EPROTO);
	assert(received == 77);
	/* And nothing was cut by the question. */
	assert(transport_read_all(&pair.client, &byte, 1, PATIENCE_MS) == 0 && byte == 'x');
	assert(pair.dials == 0);
	pair.client.ops->shutdown(&pair.client);
	pair.server.ops->shutdown(&pair.server);
}

static void test_a_chunk_that_lies_is_the_end(void)
{
	const struct { uint32_t length; uint8_t next, zero[3]; } lies[] = {
		{ 0, 0, { 0 } },		/* nothing */
		{ (1 << 20) + 1, 0, { 0 } },	/* more than there may be */
		{ UINT32_MAX, 0, { 0 } },
		{ 8, 1, { 0 } },		/* a connection that is not there */
		{ 8, BUNDLE_CONNECTIONS, { 0 } },
		{ 8, UINT8_MAX, { 0 } },
		{ 8, 0, { 0, 0, 1 } },
	};

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		const struct resume_options options = {
			.grace_ms = PATIENCE_MS, .closed_grace_ms = PATIENCE_MS, .bundles = true,
		};
		struct transport transport;
		int ends[2];
		char byte;

		assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
		assert(transport_socket_init(&transport, ends[0]) == 0);
		assert(transport_resume_wrap(&transport, &options) == 0);
		assert(write(ends[1], &lies[i], sizeof(lies[i])) == sizeof(lies[i]));
		assert(transport_read_all(&transport, &byte, 1, PATIENCE_MS) == -EPROTO);
		assert(transport_write_all(&transport, "x", 1) == -EPIPE);
		close(ends[1]);
	}
}

struct chunk_header {
	uint32_t length;
	uint8_t next, zero[3];
};

/* A server's stream over two connections, of which this side has the other ends, and has named the second. */
static void wide_make(struct transport *transport, int ends[2])
{
	const struct resume_options options = {
		.grace_ms = PATIENCE_MS, .closed_grace_ms = PATIENCE_MS, .bundles = true, .grows = true,
	};
	const struct chunk_header naming = { .length = 8, .next = 1 };
	const uint32_t acknowledges[2] = { 0, 0 };
	struct transport second;
	int pairs[2][2];
	char byte;

	for (int i = 0; i < 2; i++)
		assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]) == 0);
	assert(transport_socket_init(transport, pairs[0][0]) == 0);
	assert(transport_socket_init(&second, pairs[1][0]) == 0);
	assert(transport_resume_wrap(transport, &options) == 0);
	assert(transport_resume_join(transport, &second, 0, 0) == 1);
	transport_resume_joined(transport, 0, 1);
	assert(transport->ops->wide(transport));
	ends[0] = pairs[0][1];
	ends[1] = pairs[1][1];
	assert(write(ends[0], &naming, sizeof(naming)) == sizeof(naming));
	assert(write(ends[0], acknowledges, sizeof(acknowledges)) == sizeof(acknowledges));
	assert(transport->ops->read(transport, &byte, 1) == -EAGAIN);
}

/* More than a socket holds. */
#define WIDE_CHUNK_BYTES ((size_t)256 << 10)

static void write_exactly(int descriptor, const void *bytes, size_t count)
{
	for (ssize_t wrote; count; count -= (size_t)wrote, bytes = (const char *)bytes + wrote)
		assert((wrote = write(descriptor, bytes, count)) > 0);
}

static void read_exactly(int descriptor, void *bytes, size_t count)
{
	for (ssize_t got; count; count -= (size_t)got, bytes = (char *)bytes + got)
		assert((got = read(descriptor, bytes, count)) > 0);
}

struct wide_end {
	struct transport *transport;
	uint8_t *bytes;
	int rc;
};

static void *wide_read(void *opaque)
{
	struct wide_end *end = opaque;

	end->rc = transport_read_all(end->transport, end->bytes, 2 * WIDE_CHUNK_BYTES, PATIENCE_MS);
	return NULL;
}

/* Write a record whose first chunk is the first connection's and the second the second's: of one of them a byte is left, and all
 * of the other, which nobody could do if it were not read meanwhile. */
static void wide_begin(int ends[2], const uint8_t *bytes, int left)
{
	/* The one that was named last comes next. */
	const struct chunk_header head = { .length = 8, .next = 0 };
	const struct chunk_header first = { .length = WIDE_CHUNK_BYTES, .next = 1 };
	const struct chunk_header second = { .length = WIDE_CHUNK_BYTES, .next = 0 };
	const uint32_t record[2] = { 2 * WIDE_CHUNK_BYTES, 0 };

	write_exactly(ends[1], &head, sizeof(head));
	write_exactly(ends[1], record, sizeof(record));
	write_exactly(ends[1], &second, sizeof(second));
	write_exactly(ends[0], &first, sizeof(first));
	write_exactly(ends[left], bytes + left * WIDE_CHUNK_BYTES, WIDE_CHUNK_BYTES - 1);
	write_exactly(ends[!left], bytes + !left * WIDE_CHUNK_BYTES, WIDE_CHUNK_BYTES);
}

static void test_all_connections_are_read_at_one_time(void)
{
	uint8_t *bytes = malloc(2 * WIDE_CHUNK_BYTES), *got = calloc(2, WIDE_CHUNK_BYTES);
	struct transport transport;
	struct wide_end end = { .transport = &transport, .bytes = got };
	pthread_t reader;
	int ends[2];

	for (size_t i = 0; i < 2 * WIDE_CHUNK_BYTES; i++)
		bytes[i] = pattern(i);
	wide_make(&transport, ends);
	assert(pthread_create(&reader, NULL, wide_read, &end) == 0);
	wide_begin(ends, bytes, 0);
	write_exactly(ends[0], bytes + WIDE_CHUNK_BYTES - 1, 1);
	pthread_join(reader, NULL);
	assert(end.rc == 0 && memcmp(got, bytes, 2 * WIDE_CHUNK_BYTES) == 0);
	transport.ops->shutdown(&transport);
	transport_release(&transport);
	close(ends[0]);
	close(ends[1]);
	free(bytes);
	free(got);
}

static void test_a_wide_read_ends_with_one_of_its_connections(void)
{
	uint8_t *bytes = calloc(2, WIDE_CHUNK_BYTES);

	for (int which = 0; which < 2; which++) {
		struct transport transport;
		struct wide_end end = { .transport = &transport, .bytes = calloc(2, WIDE_CHUNK_BYTES) };
		pthread_t reader;
		int ends[2];

		wide_make(&transport, ends);
		assert(pthread_create(&reader, NULL, wide_read, &end) == 0);
		wide_begin(ends, bytes, which);
		close(ends[which]);
		/* The other is ended, too: the stream is cut. */
		assert(read(ends[!which], bytes, 1) == 0);
		transport.ops->shutdown(&transport);
		pthread_join(reader, NULL);
		assert(end.rc == -EPIPE);
		transport_release(&transport);
		close(ends[!which]);
		free(end.bytes);
	}
	free(bytes);
}

static void *wide_write(void *opaque)
{
	struct wide_end *end = opaque;

	end->rc = transport_write_all(end->transport, end->bytes, 2 * WIDE_CHUNK_BYTES);
	return NULL;
}

static void test_all_connections_are_written_to_at_one_time(void)
{
	uint8_t *bytes = malloc(2 * WIDE_CHUNK_BYTES), *got[2];
	struct chunk_header headers[2];
	struct transport transport;
	struct wide_end end = { .transport = &transport, .bytes = bytes };
	size_t at = 0;
	pthread_t writer;
	int ends[2];

	for (size_t i = 0; i < 2 * WIDE_CHUNK_BYTES; i++)
		bytes[i] = pattern(i);
	wide_make(&transport, ends);
	assert(pthread_create(&writer, NULL, wide_write, &end) == 0);
	/* The second first: nobody writes there where the first one is full and has to be written before. */
	for (int i = 1; i >= 0; i--) {
		read_exactly(ends[i], &headers[i], sizeof(headers[i]));
		got[i] = malloc(headers[i].length);
		read_exactly(ends[i], got[i], headers[i].length);
	}
	pthread_join(writer, NULL);
	assert(end.rc == 0 && headers[0].next == 1);
	for (int i = 0; i < 2; i++) {
		/* A record's header begins the first. */
		size_t skipped = i ? 0 : 8;

		assert(headers[i].length - skipped > WIDE_CHUNK_BYTES / 2);
		assert(memcmp(got[i] + skipped, bytes + at, headers[i].length - skipped) == 0);
		at += headers[i].length - skipped;
		free(got[i]);
	}
	assert(at == 2 * WIDE_CHUNK_BYTES);
	transport.ops->shutdown(&transport);
	transport_release(&transport);
	close(ends[0]);
	close(ends[1]);
	free(bytes);
}

/* One connection has failed, and nobody reads from the other, since what comes first is lost. */
static void test_a_wide_write_ends_with_one_of_its_connections(void)
{
	for (int which = 0; which < 2; which++) {
		struct transport transport;
		struct wide_end end = { .transport = &transport, .bytes = calloc(2, WIDE_CHUNK_BYTES) };
		struct chunk_header header;
		pthread_t writer;
		int ends[2];

		wide_make(&transport, ends);
		assert(pthread_create(&writer, NULL, wide_write, &end) == 0);
		/* Both are being written to. */
		read_exactly(ends[0], &header, sizeof(header));
		read_exactly(ends[1], &header, sizeof(header));
		close(ends[which]);
		pthread_join(writer, NULL);
		/* What is not acknowledged stays for the next connection. */
		assert(end.rc == 0);
		transport.ops->shutdown(&transport);
		transport_release(&transport);
		close(ends[!which]);
		free(end.bytes);
	}
}

static int connect_from_loopback(int descriptor, const struct sockaddr_in *address)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };

	assert(bind(descriptor, (struct sockaddr *)&own, sizeof(own)) == 0);
	return connect(descriptor, (const struct sockaddr *)address, sizeof(*address));
}

/* Two addresses of this machine stand for two machines'. */
static void test_a_server_of_another_machine_begins_with_more(void)
{
	const struct resume_options options = { .grows = true, .prompt = true };
	struct sockaddr_in address;
	socklen_t bytes = sizeof(address);
	struct transport server;
	int listener, client;

	for (uint32_t other = 0; other < 2; other++) {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		address = (struct sockaddr_in){ .sin_family = AF_INET };
		address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + other);
		assert(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 1) == 0);
		assert(getsockname(listener, (struct sockaddr *)&address, &bytes) == 0);
		client = socket(AF_INET, SOCK_STREAM, 0);
		assert(connect_from_loopback(client, &address) == 0);
		assert(transport_socket_init(&server, accept(listener, NULL, NULL)) == 0);
		assert(transport_resume_wrap(&server, &options) == 0);
		assert(window_of(&server) == (other ? RESUME_WINDOW_FIRST : RESUME_WINDOW_RING));
		server.ops->shutdown(&server);
		transport_release(&server);
		close(client);
		close(listener);
	}
}

struct writing {
	struct transport *transport;
	_Atomic pid_t thread;
};

static void *write_one(void *opaque)
{
	struct writing *writing = opaque;

	atomic_store(&writing->thread, gettid());
	assert(transport_write_all(writing->transport, "b", 1) == 0);
	return NULL;
}

/* Wait until the thread, which has begun or will, sleeps. */
static void await_asleep(const _Atomic pid_t *thread)
{
	char path[64], state = 0;

	alarm(PATIENCE_MS / 1000);
	while (state != 'S') {
		FILE *file;

		sched_yield();
		if (!atomic_load(thread))
			continue;
		(void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(thread));
		file = fopen(path, "r");
		assert(file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
		fclose(file);
	}
	alarm(0);
}

/* Write so many bytes in place, and return where they lie. */
static uint8_t *make(struct transport *transport, size_t bytes, size_t from)
{
	uint8_t *at;

	assert(transport->ops->room(transport, (void **)&at, bytes) == (ssize_t)bytes);
	for (size_t i = 0; i < bytes; i++)
		at[i] = pattern(from + i);
	assert(transport->ops->written(transport, bytes, true) == 0);
	return at;
}

static void assert_pattern(const uint8_t *bytes, size_t count, size_t from)
{
	for (size_t i = 0; i < count; i++)
		assert(bytes[i] == pattern(from + i));
}

/* A window grows as well where each piece of a copy is less than it, as a device copies them: once the writer waits for room,
 * all of it counts. */
static void test_a_window_grows_where_it_is_what_a_copy_waits_for(void)
{
	const struct record_header record = { 0, RESUME_WINDOW_RING };
	struct transport transport;
	struct writing writing = { .transport = &transport };
	pthread_t writer, peer;
	int end = alone_make(&transport, &growing);

	assert(window_of(&transport) == RESUME_WINDOW_RING);
	assert(pthread_create(&peer, NULL, read_to_nowhere, &end) == 0);
	for (size_t at = 0; at < RESUME_WINDOW_RING; at += RESUME_WINDOW_RING / 4)
		(void)make(&transport, RESUME_WINDOW_RING / 4, at);
	assert(pthread_create(&writer, NULL, write_one, &writing) == 0);
	await_asleep(&writing.thread);
	assert(write(end, &record, sizeof(record)) == sizeof(record));
	pthread_join(writer, NULL);
	assert(window_of(&transport) > RESUME_WINDOW_RING);
	transport.ops->shutdown(&transport);
	pthread_join(peer, NULL);
	close(end);
}

/* What is made in place takes the place of what is acknowledged, of nothing else, and comes again over the next
 * connection. */
static void test_what_is_made_lies_where_the_last_did_once_that_is_acknowledged(void)
{
	const size_t piece = 16u << 10;
	uint8_t *first, *second, bytes[4 * piece];
	struct pair pair;
	char told;

	bundle_make(&pair, PATIENCE_MS, true, true, 0);
	first = make(&pair.server, piece, 0);
	second = make(&pair.server, piece, piece);
	assert(second >= first + piece);
	assert(transport_read_all(&pair.client, bytes, piece, PATIENCE_MS) == 0);
	assert_pattern(bytes, piece, 0);
	/* It is not known yet, and then it is, with what the other side says. */
	assert(make(&pair.server, piece, 2 * piece) >= second + piece);
	assert(transport_write_all(&pair.client, "a", 1) == 0);
	assert(make(&pair.server, piece, 3 * piece) == first);
	assert(transport_read_all(&pair.server, &told, 1, PATIENCE_MS) == 0 && told == 'a');
	shutdown(pair.server.descriptor, SHUT_RDWR);
	assert(transport_read_all(&pair.client, bytes, 3 * piece, PATIENCE_MS) == 0);
	assert_pattern(bytes, 3 * piece, piece);
	pair.client.ops->shutdown(&pair.client);
	pair.server.ops->shutdown(&pair.server);
}

/* Also where who writes has read ahead of who reads, in whatever pieces it came, and where the peer has hung up. */
static void test_what_came_before_the_end_is_read(void)
{
	const struct { struct record_header said; char byte; struct record_header end; } __attribute__((packed)) last = {
		{ 1, 0 }, 'x', { UINT32_MAX, 0 }
	};
	const size_t said = sizeof(last.said) + 1, piece = 16u << 10;
	uint8_t *bytes = calloc(1, RESUME_WINDOW_RING);

	for (int way = 0; way < 6; way++) {
		const bool in_place = way & 1, at_once = way & 6, hangs_up = way & 4;
		struct transport transport;
		pthread_t peer;
		char byte = 0;
		void *at;
		int end = alone_make(&transport, &plain), rc;

		(void)make(&transport, piece, 0);
		assert(write(end, &last, at_once ? sizeof(last) : said) == (ssize_t)(at_once ? sizeof(last) : said));
		(void)make(&transport, piece, piece);
		if (!at_once)
			assert(write(end, &last.end, sizeof(last.end)) == sizeof(last.end));
		if (hangs_up)
			shutdown(end, SHUT_RDWR);
		else
			assert(pthread_create(&peer, NULL, read_to_nowhere, &end) == 0);
		if (in_place)
			(void)transport.ops->room(&transport, &at, 1);
		do
			rc = transport_write_all(&transport, bytes, RESUME_WINDOW_RING);
		while (!rc);
		assert(rc == -EPIPE);
		assert(transport_read_all(&transport, &byte, 1, PATIENCE_MS) == 0 && byte == 'x');
		assert(transport_read_all(&transport, &byte, 1, PATIENCE_MS) == -EPIPE);
		transport.ops->shutdown(&transport);
		if (!hangs_up)
			pthread_join(peer, NULL);
		close(end);
	}
	free(bytes);
}

static unsigned reads;
static const struct transport_ops *reads_below;

static ssize_t read_counted(struct transport *transport, void *buffer, size_t bytes)
{
	reads++;
	return reads_below->read(transport, buffer, bytes);
}

/* A copy's frame has a header ahead, which has not left. */
static void test_nothing_is_read_where_all_that_left_is_acknowledged(void)
{
	struct iovec header = { .iov_base = "h", .iov_len = 1 };
	struct transport transport;
	struct transport_ops ops;
	int ends[2];
	void *at;

	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	assert(transport_socket_init(&transport, ends[0]) == 0);
	reads_below = transport.ops;
	ops = *reads_below;
	ops.read = read_counted;
	transport.ops = &ops;
	assert(transport_resume_wrap(&transport, &plain) == 0);
	assert(transport.ops->append(&transport, &header, 1) == 0);
	assert(transport.ops->room(&transport, &at, 1) == 1);
	assert(reads == 0);
	assert(transport.ops->written(&transport, 1, false) == 0);
	assert(transport.ops->room(&transport, &at, 1) == 1);
	assert(reads == 1);
	transport.ops->shutdown(&transport);
	close(ends[1]);
}

static void *nothing(void *opaque)
{
	return opaque;
}

/* A full window's round begins when all of it is on its way: that it is over soon says nothing of the network. */
static void test_a_full_window_is_at_most_what_the_network_holds(void)
{
	const size_t first = 16u << 10, piece = RESUME_WINDOW_RING / 4;
	const struct record_header records[] = { { 0, first }, { 0, first + RESUME_WINDOW_RING } };
	struct transport transport;
	struct writing writing = { .transport = &transport };
	pthread_t writer, peer;
	int end = alone_make(&transport, &growing);
	char byte;

	assert(pthread_create(&peer, NULL, read_to_nowhere, &end) == 0);
	(void)make(&transport, first, 0);
	/* The shortest round takes long. */
	for (int i = 0; i < 2000; i++) {
		assert(pthread_create(&writer, NULL, nothing, NULL) == 0);
		pthread_join(writer, NULL);
	}
	assert(write(end, &records[0], sizeof(records[0])) == sizeof(records[0]));
	assert(transport.ops->read(&transport, &byte, 1) == -EAGAIN);
	for (size_t at = 0; at < RESUME_WINDOW_RING; at += piece)
		(void)make(&transport, piece, at);
	assert(pthread_create(&writer, NULL, write_one, &writing) == 0);
	await_asleep(&writing.thread);
	assert(write(end, &records[1], sizeof(records[1])) == sizeof(records[1]));
	pthread_join(writer, NULL);
	assert(window_of(&transport) <= 2 * RESUME_WINDOW_RING);
	transport.ops->shutdown(&transport);
	pthread_join(peer, NULL);
	close(end);
}

static void test_a_connection_is_added_to_the_one_that_it_was_made_for(void)
{
	struct transport fresh[BUNDLE_CONNECTIONS];
	struct pair pair;
	uint64_t generation;
	int ends[2];

	bundle_make(&pair, PATIENCE_MS, false, false, 1);
	for (unsigned i = 0; i < BUNDLE_CONNECTIONS; i++) {
		assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
		assert(transport_socket_init(&fresh[i], ends[0]) == 0);
	}
	generation = transport_resume_generation(&pair.server);
	assert(transport_resume_join(&pair.server, &fresh[0], generation + 1, 0) == -ESTALE);
	for (int i = 1; i < (int)BUNDLE_CONNECTIONS; i++)
		assert(transport_resume_join(&pair.server, &fresh[i], generation, 0) == i);
	assert(transport_resume_join(&pair.server, &fresh[0], generation, 0) == -ENOSPC);
	assert(transport_resume_join(&pair.server, &fresh[0], generation, 3) == -EEXIST);
	assert(transport_resume_join(&pair.server, &fresh[0], generation, BUNDLE_CONNECTIONS) == -ENOSPC);
	pair.client.ops->shutdown(&pair.client);
	pair.server.ops->shutdown(&pair.server);
	assert(transport_resume_join(&pair.server, &fresh[0], generation, 0) == -ESTALE);
	transport_release(&fresh[0]);
}

int main(void)
{
	test_an_end_that_is_said_is_not_waited_for();
	test_who_has_said_the_end_dials_nobody();
	test_a_peer_can_t_have_what_was_never_sent();
	test_after_the_grace_time_reading_and_writing_are_errors();
	test_who_sleeps_meets_the_new_connection();
	test_a_reader_wakes_the_writer_whose_acknowledgement_it_took();
	test_a_writer_wakes_the_reader_whose_bytes_it_took();
	test_a_thread_that_is_cancelled_ends_behind_its_wait();
	test_two_writers_whom_nobody_reads_do_not_wait_for_each_other();
	test_both_streams_arrive_whole_however_often_they_are_cut(false, 0);
	test_both_streams_arrive_whole_however_often_they_are_cut(true, 0);
	test_both_streams_arrive_whole_however_often_they_are_cut(false, 1);
	test_both_streams_arrive_whole_however_often_they_are_cut(true, 3);
	test_both_streams_arrive_whole_however_often_they_are_cut(true, BUNDLE_CONNECTIONS);
	test_the_same_of_what_the_kernel_sends_from_where_it_lies(false, 0);
	test_the_same_of_what_the_kernel_sends_from_where_it_lies(true, 0);
	test_the_same_of_what_the_kernel_sends_from_where_it_lies(true, 3);
	test_who_waits_waits_on_when_the_kernel_tells_of_sends(0);
	test_who_waits_waits_on_when_the_kernel_tells_of_sends(3);
	/* From here on several threads carry what is large, on any machine. */
	crew_set_processors(0);
	test_both_streams_arrive_whole_however_often_they_are_cut(true, 2);
	test_all_connections_are_read_at_one_time();
	test_all_connections_are_written_to_at_one_time();
	test_a_wide_read_ends_with_one_of_its_connections();
	test_a_wide_write_ends_with_one_of_its_connections();
	test_both_streams_arrive_whole_however_often_they_are_cut(false, 4);
	test_both_streams_arrive_whole_however_often_they_are_cut(true, BUNDLE_CONNECTIONS);
	test_the_same_of_what_the_kernel_sends_from_where_it_lies(true, 4);
	test_a_chunk_that_lies_is_the_end();
	test_a_connection_is_added_to_the_one_that_it_was_made_for();
	test_a_window_grows_with_what_the_network_holds();
	test_a_server_of_another_machine_begins_with_more();
	test_a_window_grows_where_it_is_what_a_copy_waits_for();
	test_a_full_window_is_at_most_what_the_network_holds();
	test_what_is_made_lies_where_the_last_did_once_that_is_acknowledged();
	test_what_came_before_the_end_is_read();
	test_nothing_is_read_where_all_that_left_is_acknowledged();
	puts("ok");
	return 0;
}
