/* Streams that outlive their connections: order, cuts, who wakes whom, ends; and impossible peers. */
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

#include "../transport/ground/crew.h"
#include "../transport/resumed/resume.h"
#include "../transport/sockets/bundle.h"
#include "../transport/sockets/socket.h"
#include "../transport/sockets/zerocopy.h"
#include "kernel.h"
#include "stream_pair.h"

#undef NDEBUG

#define STREAM_BYTES ((size_t)96 << 20)

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
	test_both_streams_arrive_whole_however_often_they_are_cut(false, 4);
	test_both_streams_arrive_whole_however_often_they_are_cut(true, BUNDLE_CONNECTIONS);
	test_the_same_of_what_the_kernel_sends_from_where_it_lies(true, 4);
	test_what_came_before_the_end_is_read();
	test_nothing_is_read_where_all_that_left_is_acknowledged();
	puts("ok");
	return 0;
}
