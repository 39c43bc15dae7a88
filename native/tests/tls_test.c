/* TLS as a transport: what arrives, what does not, and who gets in. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../transport/sockets/socket.h"
#include "../transport/sockets/tls.h"
#include "../wire/digest.h"
#include "../wire/proof.h"

#undef NDEBUG

#define PATIENCE_MS 20000
#define LARGE (8u << 20)

static const uint8_t key[TLS_KEY_BYTES] = { 1, 2, 3 };
static const uint8_t other[TLS_KEY_BYTES] = { 1, 2, 4 };

struct side {
	struct transport transport;
	const uint8_t *key;
	int timeout_ms;
	int rc;
	char why[TLS_WHY_BYTES];
	pthread_t thread;
};

static void *serve(void *opaque)
{
	struct side *side = opaque;

	side->rc = transport_tls_start(&side->transport, side->key, true, side->timeout_ms, side->why);
	if (side->rc)
		side->transport.ops->shutdown(&side->transport);
	return NULL;
}

static void sides_connect(struct side *client, struct side *server)
{
	int pair[2];

	memset(client, 0, sizeof(*client));
	memset(server, 0, sizeof(*server));
	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	assert(transport_socket_init(&client->transport, pair[0]) == 0);
	assert(transport_socket_init(&server->transport, pair[1]) == 0);
	client->key = server->key = key;
	client->timeout_ms = server->timeout_ms = PATIENCE_MS;
}

static void sides_shake(struct side *client, struct side *server)
{
	assert(pthread_create(&server->thread, NULL, serve, server) == 0);
	client->rc = transport_tls_start(&client->transport, client->key, false, client->timeout_ms,
					 client->why);
	if (client->rc)
		client->transport.ops->shutdown(&client->transport);
	pthread_join(server->thread, NULL);
}

static void sides_make(struct side *client, struct side *server)
{
	sides_connect(client, server);
	sides_shake(client, server);
	if (client->rc || server->rc)
		fprintf(stderr, "client: %s; server: %s\n", client->why, server->why);
	assert(!client->rc && !server->rc);
	assert(strcmp(client->transport.ops->name, "tls") == 0);
}

static void sides_drop(struct side *client, struct side *server)
{
	transport_release(&client->transport);
	transport_release(&server->transport);
}

static uint8_t pattern(size_t at)
{
	return (uint8_t)(at * 2654435761u >> 11);
}

/* One end of a connection, with all that goes through it in one direction. */
struct flow {
	struct transport *transport;
	uint8_t *data;
	uint64_t seed;
};

/* Write it all in pieces of all sizes, empty ones among them. */
static void *write_pieces(void *opaque)
{
	struct flow *flow = opaque;
	size_t at = 0;

	while (at < LARGE) {
		struct iovec vector[4];

		for (int i = 0; i < 4; i++) {
			size_t most = LARGE - at, bytes;

			flow->seed = flow->seed * 6364136223846793005u + 1442695040888963407u;
			bytes = (flow->seed >> 33) % (1u << (flow->seed >> 59) % 18);
			vector[i] = (struct iovec){ flow->data + at, bytes < most ? bytes : most };
			at += vector[i].iov_len;
		}
		assert(flow->transport->ops->write(flow->transport, vector, 4) == 0);
	}
	return NULL;
}

static void *read_pieces(void *opaque)
{
	struct flow *flow = opaque;
	size_t at = 0;

	while (at < LARGE) {
		size_t bytes = 1 + at % 70001;

		if (bytes > LARGE - at)
			bytes = LARGE - at;
		assert(transport_read_all(flow->transport, flow->data + at, bytes, PATIENCE_MS) == 0);
		at += bytes;
	}
	return NULL;
}

static void test_bytes_arrive_in_order_in_both_directions_at_once(uint32_t key_records)
{
	struct side client, server;
	uint8_t *sent = malloc(LARGE), *got[2] = { malloc(LARGE), malloc(LARGE) };
	pthread_t threads[4];

	for (size_t i = 0; i < LARGE; i++)
		sent[i] = pattern(i);
	sides_make(&client, &server);
	transport_tls_set_key_records(&client.transport, key_records);
	transport_tls_set_key_records(&server.transport, key_records);
	struct flow flows[4] = {
		{ &client.transport, sent, 7 },
		{ &server.transport, sent, 8 },
		{ &client.transport, got[0], 0 },
		{ &server.transport, got[1], 0 },
	};
	for (int i = 0; i < 4; i++)
		assert(pthread_create(&threads[i], NULL, i < 2 ? write_pieces : read_pieces, &flows[i]) == 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert(memcmp(sent, got[0], LARGE) == 0 && memcmp(sent, got[1], LARGE) == 0);
	sides_drop(&client, &server);
	free(sent);
	free(got[0]);
	free(got[1]);
}

static void test_another_key_gets_nobody_in(void)
{
	struct side client, server;

	sides_connect(&client, &server);
	client.key = other;
	sides_shake(&client, &server);
	assert(client.rc == -EACCES && server.rc == -EACCES);
	assert(strstr(client.why, "another secret") && strstr(server.why, "another secret"));
	assert(!client.transport.tls && !server.transport.tls);
	sides_drop(&client, &server);
}

static void test_a_silent_peer_is_waited_for_no_longer_than_agreed(void)
{
	struct side client, server;

	sides_connect(&client, &server);
	assert(transport_tls_start(&client.transport, key, false, 20, client.why) == -ETIMEDOUT);
	assert(strstr(client.why, "in time"));
	sides_drop(&client, &server);
	sides_connect(&client, &server);
	assert(transport_tls_start(&server.transport, key, true, 20, server.why) == -ETIMEDOUT);
	/* Nor is one that sends a byte now and then: the time is for all of it. */
	assert(write(client.transport.descriptor, "\x16\x03\x01\x02", 4) == 4);
	assert(transport_tls_start(&server.transport, key, true, 20, server.why) == -ETIMEDOUT);
	sides_drop(&client, &server);
}

static void test_an_answer_that_is_not_tls_is_left_to_be_read(void)
{
	struct side client, server;
	char answer[4];

	sides_connect(&client, &server);
	assert(write(server.transport.descriptor, "US\r\n", 4) == 4);
	assert(transport_tls_start(&client.transport, key, false, PATIENCE_MS, client.why) == -ENOMSG);
	assert(transport_read_all(&client.transport, answer, 4, PATIENCE_MS) == 0);
	assert(memcmp(answer, "US\r\n", 4) == 0);
	sides_drop(&client, &server);
}

static void test_the_other_end_s_end_is_seen(void)
{
	struct side client, server;
	uint8_t byte;

	sides_make(&client, &server);
	assert(transport_write_all(&server.transport, "x", 1) == 0);
	transport_release(&server.transport);
	/* What it had said before arrives. */
	assert(transport_read_all(&client.transport, &byte, 1, PATIENCE_MS) == 0 && byte == 'x');
	assert(client.transport.ops->wait(&client.transport, PATIENCE_MS) == 0);
	assert(client.transport.ops->read(&client.transport, &byte, 1) == -EPIPE);
	sides_drop(&client, &server);
}

static void test_what_was_received_and_not_read_needs_no_waiting(void)
{
	struct side client, server;
	uint8_t byte;

	sides_make(&client, &server);
	assert(transport_write_all(&server.transport, "xy", 2) == 0);
	assert(transport_write_all(&server.transport, "z", 1) == 0);
	for (const char *expected = "xyz"; *expected; expected++) {
		assert(client.transport.ops->wait(&client.transport, PATIENCE_MS) == 0);
		assert(client.transport.ops->read(&client.transport, &byte, 1) == 1 && byte == *expected);
	}
	assert(client.transport.ops->wait(&client.transport, 0) == -ETIMEDOUT);
	assert(client.transport.ops->read(&client.transport, &byte, 1) == -EAGAIN);
	sides_drop(&client, &server);
}

/* Records that were never sealed, which the reader gets as they are. */
static void test_what_is_no_record_is_refused(void)
{
	static const struct {
		uint8_t bytes[64];
		size_t size;
	} hostile[] = {
		{ { 22, 3, 3, 0, 32 }, 37 },		/* not data */
		{ { 23, 3, 1, 0, 32 }, 37 },		/* another version */
		{ { 23, 3, 3, 0, 17 }, 22 },		/* nothing in it */
		{ { 23, 3, 3, 0, 0 }, 5 },
		{ { 23, 3, 3, 0x40, 0x12 }, 5 },	/* longer than there are */
		{ { 23, 3, 3, 0xff, 0xff }, 5 },
		{ { 23, 3, 3, 0, 32 }, 37 },		/* nobody's tag */
	};

	for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
		struct side client, server;
		uint8_t byte;

		sides_make(&client, &server);
		assert(write(server.transport.descriptor, hostile[i].bytes, hostile[i].size) ==
		       (ssize_t)hostile[i].size);
		assert(client.transport.ops->wait(&client.transport, PATIENCE_MS) == 0);
		assert(client.transport.ops->read(&client.transport, &byte, 1) == -EBADMSG);
		/* And for ever. */
		assert(client.transport.ops->wait(&client.transport, PATIENCE_MS) == 0);
		assert(client.transport.ops->read(&client.transport, &byte, 1) == -EBADMSG);
		sides_drop(&client, &server);
	}
}

/* ---- somebody in the middle ---- */

struct middle {
	int from, to;
	size_t alter;			/* the number of the byte that is altered; SIZE_MAX: none */
	int twice;			/* say everything behind the handshake twice */
	size_t passed;
};

static void *middle_pass(void *opaque)
{
	struct middle *middle = opaque;
	uint8_t bytes[65536];
	ssize_t got;

	while ((got = recv(middle->from, bytes, sizeof(bytes), 0)) > 0) {
		if (middle->alter >= middle->passed && middle->alter < middle->passed + (size_t)got)
			bytes[middle->alter - middle->passed] ^= 0x10;
		middle->passed += (size_t)got;
		if (send(middle->to, bytes, (size_t)got, MSG_NOSIGNAL) != got)
			break;
		if (middle->twice && bytes[0] == 23 && got == 5 + 7 + 1 + 16)
			(void)!send(middle->to, bytes, (size_t)got, MSG_NOSIGNAL);
	}
	shutdown(middle->to, SHUT_WR);
	return NULL;
}

/* A connection through somebody who does that; how many bytes of "message" arrived. */
static size_t through(struct middle out, struct middle back, size_t passed[2])
{
	struct side client, server;
	pthread_t passing[2];
	char got[15] = "";
	int left[2], right[2];
	size_t arrived = 0;
	ssize_t read;

	memset(&client, 0, sizeof(client));
	memset(&server, 0, sizeof(server));
	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, left) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, right) == 0);
	assert(transport_socket_init(&client.transport, left[0]) == 0);
	assert(transport_socket_init(&server.transport, right[0]) == 0);
	client.key = server.key = key;
	/* A length that was altered makes a reader wait for what never comes. */
	client.timeout_ms = server.timeout_ms = 200;
	out.from = back.to = left[1];
	out.to = back.from = right[1];
	assert(pthread_create(&passing[0], NULL, middle_pass, &out) == 0);
	assert(pthread_create(&passing[1], NULL, middle_pass, &back) == 0);
	sides_shake(&client, &server);
	if (!client.rc && !server.rc) {
		assert(transport_write_all(&client.transport, "message", 7) == 0);
		shutdown(client.transport.descriptor, SHUT_WR);
		while (server.transport.ops->wait(&server.transport, PATIENCE_MS) == 0 &&
		       (read = server.transport.ops->read(&server.transport, got + arrived, sizeof(got) - arrived)) > 0)
			arrived += (size_t)read;
		assert(memcmp(got, "message", arrived) == 0);
	}
	client.transport.ops->shutdown(&client.transport);
	server.transport.ops->shutdown(&server.transport);
	pthread_join(passing[0], NULL);
	pthread_join(passing[1], NULL);
	passed[0] = out.passed;
	passed[1] = back.passed;
	sides_drop(&client, &server);
	for (int i = 0; i < 2; i++) {
		close(left[1]);
		close(right[1]);
		left[1] = right[1] = -1;
	}
	return arrived;
}

static void test_no_byte_can_be_altered(void)
{
	const struct middle none = { .alter = SIZE_MAX };
	size_t whole[2], passed[2];
	unsigned unnoticed = 0;

	assert(through(none, none, whole) == 7);
	for (size_t at = 0; at < whole[0]; at += 3) {
		struct middle out = { .alter = at };

		unnoticed += through(out, none, passed) == 7;
	}
	for (size_t at = 0; at < whole[1]; at += 3) {
		struct middle back = { .alter = at };

		unnoticed += through(none, back, passed) == 7;
	}
	/* Nobody looks at the version in the header of a record (RFC 8446, 5.1), nor at what a record
	 * of one byte says that is there for old machines on the way. */
	assert(unnoticed <= 6);
}

static void test_a_record_that_is_said_again_is_refused(void)
{
	struct middle none = { .alter = SIZE_MAX }, twice = { .alter = SIZE_MAX, .twice = 1 };
	size_t passed[2];

	assert(through(twice, none, passed) == 7);
}

/* ---- keys ---- */

static void test_a_hello_proves_the_secret_and_all_that_it_says(void)
{
	const uint8_t secret[WIRE_SECRET_BYTES] = { 9 }, wrong[WIRE_SECRET_BYTES] = { 8 };
	struct wire_hello hello = { .magic = WIRE_HELLO_MAGIC, .program = "test" }, again;
	uint8_t one[WIRE_DIGEST_BYTES], two[WIRE_DIGEST_BYTES];

	assert(wire_hello_prove(&hello, secret) == 0);
	assert(wire_hello_proves(&hello, secret) && !wire_hello_proves(&hello, wrong));
	wire_hello_key(&hello, secret, one);
	for (size_t bit = 0; bit < 8 * sizeof(hello); bit++) {
		struct wire_hello altered = hello;

		((uint8_t *)&altered)[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert(!wire_hello_proves(&altered, secret));
		wire_hello_key(&altered, secret, two);
		assert(memcmp(one, two, sizeof(one)) != 0);
	}
	again = hello;
	assert(wire_hello_prove(&again, secret) == 0);
	assert(memcmp(again.nonce, hello.nonce, sizeof(hello.nonce)) != 0);
}

static void test_hmac_is_as_the_standard_s_examples(void)
{
	/* RFC 4231, test case 2 has a short key, which is one of 32 bytes that ends in zeros. */
	const uint8_t jefe[WIRE_DIGEST_BYTES] = "Jefe";
	const uint8_t expected[] = { 0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e };
	uint8_t digest[WIRE_DIGEST_BYTES];

	wire_hmac(jefe, "what do ya want ", "for nothing?", 12, digest);
	assert(memcmp(digest, expected, sizeof(expected)) == 0 && digest[31] == 0x43);
}

int main(void)
{
	test_hmac_is_as_the_standard_s_examples();
	test_a_hello_proves_the_secret_and_all_that_it_says();
	test_bytes_arrive_in_order_in_both_directions_at_once(TLS_KEY_RECORDS);
	test_bytes_arrive_in_order_in_both_directions_at_once(1);
	test_bytes_arrive_in_order_in_both_directions_at_once(17);
	test_another_key_gets_nobody_in();
	test_a_silent_peer_is_waited_for_no_longer_than_agreed();
	test_an_answer_that_is_not_tls_is_left_to_be_read();
	test_the_other_end_s_end_is_seen();
	test_what_was_received_and_not_read_needs_no_waiting();
	test_what_is_no_record_is_refused();
	test_no_byte_can_be_altered();
	test_a_record_that_is_said_again_is_refused();
	puts("ok");
	return 0;
}
