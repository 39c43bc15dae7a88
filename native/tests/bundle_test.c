/* One stream over several connections: chunks, and several threads that carry what is large. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../transport/ground/crew.h"
#include "../transport/sockets/bundle.h"
#include "../transport/sockets/socket.h"
#include "stream_pair.h"

#undef NDEBUG

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
	/* Several threads carry what is large, on any machine. */
	crew_set_processors(0);
	test_all_connections_are_read_at_one_time();
	test_all_connections_are_written_to_at_one_time();
	test_a_wide_read_ends_with_one_of_its_connections();
	test_a_wide_write_ends_with_one_of_its_connections();
	test_a_chunk_that_lies_is_the_end();
	test_a_connection_is_added_to_the_one_that_it_was_made_for();
	puts("ok");
	return 0;
}
