/* remoting_tls_fuzz.c - hostile bytes at TLS: in the handshake of both sides, and in records.
 *
 * A client and a server talk through somebody who flips, drops, repeats, inserts and cuts.
 * The same number makes the same changes to the same places.  A sanitizer's finding, bytes that
 * arrive and were not sent, and a side that does not end are findings.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../transport/sockets/socket.h"
#include "../transport/sockets/tls.h"
#include "rounds.h"

#define CONNECTION_MAX_S 20u
/* Who waits for what was dropped gives up then. */
#define HANDSHAKE_TIMEOUT_MS 50
#define CHANGES_MAX 4u
#define SENT_BYTES 40000u

static const uint8_t key[TLS_KEY_BYTES] = { 7 };
static uint8_t sent[SENT_BYTES];

static void finding(const char *what)
{
	fprintf(stderr, "remoting_tls: %s\n", what);
	abort();
}

/* ---- who changes it ---- */

enum change { FLIP, DROP, REPEAT, INSERT, CUT, CHANGES };

struct middle {
	int from, to;
	uint64_t state;
	struct {
		size_t at;
		enum change change;
		uint8_t value;
	} changes[CHANGES_MAX];
	unsigned count;
	pthread_t thread;
};

static void middle_choose(struct middle *middle)
{
	middle->count = (unsigned)(random_of(&middle->state) % (CHANGES_MAX + 1));
	for (unsigned i = 0; i < middle->count; i++) {
		/* The handshake's few hundred bytes as often as all that follows. */
		size_t most = random_of(&middle->state) % 2 ? 400 : SENT_BYTES;

		middle->changes[i].at = random_of(&middle->state) % most;
		middle->changes[i].change = (enum change)(random_of(&middle->state) % CHANGES);
		middle->changes[i].value = (uint8_t)random_of(&middle->state);
	}
}

/* One byte as it is passed on: into `out`, which has room for some; false: cut here. */
static bool middle_change(struct middle *middle, size_t at, uint8_t byte, uint8_t *out, size_t *bytes)
{
	out[(*bytes)++] = byte;
	for (unsigned i = 0; i < middle->count; i++) {
		if (middle->changes[i].at != at)
			continue;
		switch (middle->changes[i].change) {
		case FLIP:
			out[*bytes - 1] ^= (uint8_t)(1u << middle->changes[i].value % 8);
			break;
		case DROP:
			if (*bytes)
				--*bytes;
			return true;
		case REPEAT:
			out[(*bytes)++] = byte;
			break;
		case INSERT:
			out[(*bytes)++] = middle->changes[i].value;
			break;
		default:
			return false;
		}
	}
	return true;
}

static void *middle_pass(void *opaque)
{
	struct middle *middle = opaque;
	uint8_t in[4096], out[(1 + CHANGES_MAX) * sizeof(in)];
	size_t at = 0;
	bool whole = true;
	ssize_t got;

	while (whole && (got = recv(middle->from, in, sizeof(in), 0)) > 0) {
		size_t bytes = 0;

		for (ssize_t i = 0; i < got && whole; i++)
			whole = middle_change(middle, at++, in[i], out, &bytes);
		if (bytes && send(middle->to, out, bytes, MSG_NOSIGNAL) < 0)
			break;
	}
	shutdown(middle->to, SHUT_WR);
	shutdown(middle->from, SHUT_RD);
	return NULL;
}

/* ---- the two sides ---- */

struct side {
	struct transport transport;
	bool server;
	uint64_t state;
	pthread_t thread;
};

static void *side_write(void *opaque)
{
	struct side *side = opaque;
	size_t at = 0;

	while (at < SENT_BYTES) {
		size_t bytes = 1 + random_of(&side->state) % 20000;

		if (bytes > SENT_BYTES - at)
			bytes = SENT_BYTES - at;
		if (transport_write_all(&side->transport, sent + at, bytes))
			break;
		at += bytes;
	}
	shutdown(side->transport.descriptor, SHUT_WR);
	return NULL;
}

static void *side_run(void *opaque)
{
	struct side *side = opaque;
	uint8_t got[SENT_BYTES + 1];
	char why[TLS_WHY_BYTES];
	size_t arrived = 0;
	pthread_t writer;

	if (transport_tls_start(&side->transport, key, side->server, HANDSHAKE_TIMEOUT_MS, why)) {
		side->transport.ops->shutdown(&side->transport);
		return NULL;
	}
	if (pthread_create(&writer, NULL, side_write, side))
		finding("no thread");
	for (;;) {
		ssize_t bytes = side->transport.ops->read(&side->transport, got + arrived, sizeof(got) - arrived);

		if (bytes == -EAGAIN)
			bytes = side->transport.ops->wait(&side->transport, -1);
		else if (bytes > 0)
			arrived += (size_t)bytes;
		if (bytes < 0)
			break;
		if (arrived > SENT_BYTES || memcmp(got, sent, arrived) != 0)
			finding("bytes arrive that were not sent");
	}
	side->transport.ops->shutdown(&side->transport);
	pthread_join(writer, NULL);
	return NULL;
}

static void connection(uint64_t number)
{
	struct side client = { .server = false, .state = number };
	struct side server = { .server = true, .state = number };
	struct middle out = { .state = number * 2 }, back = { .state = number * 2 + 1 };
	int left[2], right[2];

	alarm(CONNECTION_MAX_S);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, left) || socketpair(AF_UNIX, SOCK_STREAM, 0, right) ||
	    transport_socket_init(&client.transport, left[0]) ||
	    transport_socket_init(&server.transport, right[0]))
		finding("no sockets");
	out.from = back.to = left[1];
	out.to = back.from = right[1];
	middle_choose(&out);
	middle_choose(&back);
	if (pthread_create(&out.thread, NULL, middle_pass, &out) ||
	    pthread_create(&back.thread, NULL, middle_pass, &back) ||
	    pthread_create(&client.thread, NULL, side_run, &client) ||
	    pthread_create(&server.thread, NULL, side_run, &server))
		finding("no threads");
	pthread_join(client.thread, NULL);
	pthread_join(server.thread, NULL);
	pthread_join(out.thread, NULL);
	pthread_join(back.thread, NULL);
	transport_release(&client.transport);
	transport_release(&server.transport);
	close(left[1]);
	close(right[1]);
}

static int round_run(uint64_t number)
{
	connection(number);
	return 0;
}

int main(int argc, char **argv)
{
	for (size_t i = 0; i < SENT_BYTES; i++)
		sent[i] = (uint8_t)(i * 2654435761u >> 11);
	return rounds_run(argc, argv, "remoting_tls", round_run);
}
