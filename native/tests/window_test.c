/* How much of a stream may be on its way: windows grow as far as the network holds bytes, and what is made in place lies where it can. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../transport/sockets/socket.h"
#include "stream_pair.h"

#undef NDEBUG

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

int main(void)
{
	test_a_window_grows_with_what_the_network_holds();
	test_a_server_of_another_machine_begins_with_more();
	test_a_window_grows_where_it_is_what_a_copy_waits_for();
	test_a_full_window_is_at_most_what_the_network_holds();
	test_what_is_made_lies_where_the_last_did_once_that_is_acknowledged();
	puts("ok");
	return 0;
}
