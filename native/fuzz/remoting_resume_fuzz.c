/* Fuzzer of sessions that are resumed: records and acknowledgements that are none, hellos that
 * are nearly right, connections that end anywhere; one connection, or several with chunks.
 *
 * Only a hello with the secret, the number and the token may change a session, and only to where
 * the peer can be.
 */
#include "../server/session/resume.c"

#include <sys/wait.h>

#include "../transport/sockets/bundle.h"
#include "../transport/sockets/socket.h"
#include "rounds.h"

static uint64_t random_state;

static uint64_t random_next(void)
{
	return random_of(&random_state);
}

static uint64_t random_below(uint64_t limit)
{
	return random_next() % limit;
}

static void random_fill(void *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		((uint8_t *)at)[i] = (uint8_t)random_next();
}

static void send_some(int descriptor, const void *data, size_t bytes)
{
	/* Whoever is cut off, is. */
	if (send(descriptor, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return;
}

/* Records, most of them possible. */
static void records_send(int descriptor, uint64_t written, bool chunks, const int *others)
{
	uint8_t payload[512];
	uint32_t record[2] = { (uint32_t)random_below(sizeof(payload)), (uint32_t)random_below(written + 1) };

	if (!random_below(20))
		record[0] = (uint32_t)random_next();
	if (!random_below(20))
		record[1] = (uint32_t)random_next();
	random_fill(payload, sizeof(payload));
	if (chunks) {
		const uint32_t bytes = sizeof(record) + (record[0] < sizeof(payload) ? record[0] : sizeof(payload));
		uint32_t chunk[2] = { bytes, (uint32_t)random_below(BUNDLE_CONNECTIONS) };

		if (chunk[1] && others[chunk[1]] < 0)
			chunk[1] = 0;
		if (!random_below(20))
			chunk[random_below(2)] = (uint32_t)(random_next() >> random_below(32));
		send_some(descriptor, chunk, sizeof(chunk));
	}
	send_some(descriptor, record, random_below(10) ? sizeof(record) : random_below(sizeof(record)));
	send_some(descriptor, payload, record[0] < sizeof(payload) ? record[0] : sizeof(payload));
}

/* A connection as the supervisor hands it over.  true: it proves what it must. */
static bool hello_send(struct server *server, int descriptor, uint64_t written, bool also,
		       const int *others)
{
	struct wire_hello hello = {
		.magic = WIRE_HELLO_MAGIC,
		.major = WIRE_PROTOCOL_MAJOR,
		.byte_order = WIRE_BYTE_ORDER,
		.session = server->resume.session,
		.received = also ? server->resume.connection + !random_below(8) : random_below(written + 2),
		.capabilities = also ? WIRE_CAPABILITY_CONNECTIONS : 0,
	};
	uint64_t changes = random_below(3);
	uint8_t *bytes = (uint8_t *)&hello;

	memcpy(hello.program, server->resume.token, WIRE_TOKEN_BYTES);
	if (wire_hello_prove(&hello, server->resume.key))
		return false;
	while (changes--)
		bytes[random_below(sizeof(hello))] ^= (uint8_t)(1 << random_below(8));
	if (!random_below(8))
		random_fill(bytes + random_below(sizeof(hello)), 1);
	send_some(descriptor, &hello, sizeof(hello));
	if (!random_below(4))
		records_send(descriptor, written, server->resume.bundles, others);
	return hello_proves(server, &hello) && hello_has_token(server, &hello);
}

/* 0, or what was allowed and must not be. */
static int round_run(uint64_t number)
{
	struct resume_options options = { .grace_ms = 60000, .closed_grace_ms = 60000 };
	int others[BUNDLE_CONNECTIONS];
	struct server *server = calloc(1, sizeof(*server));
	uint64_t written = 0, read = 0, before;
	unsigned steps;
	int ends[2], rc = 0;

	random_state = number;
	options.bundles = random_below(2);
	memset(others, -1, sizeof(others));
	if (!server || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0 ||
	    transport_socket_init(&server->transport, ends[0]) ||
	    transport_resume_wrap(&server->transport, &options))
		return -1;
	pthread_mutex_init(&server->resume.lock, NULL);
	server->status = &server->unseen;
	server->resume.session = random_next();
	server->resume.bundles = options.bundles;
	server->resume.connection = random_next();
	random_fill(server->resume.key, sizeof(server->resume.key));
	random_fill(server->resume.token, sizeof(server->resume.token));
	for (steps = (unsigned)random_below(60); steps-- && !rc;) {
		uint8_t data[2048];
		struct iovec vector = { .iov_base = data, .iov_len = random_below(sizeof(data)) };
		int fresh[2], on = others[random_below(BUNDLE_CONNECTIONS)];
		bool proves, accepted, also = !random_below(2);
		ssize_t got;

		switch (random_below(5)) {
		case 0:
			random_fill(data, vector.iov_len);
			before = vector.iov_len;
			if (!server->transport.ops->write(&server->transport, &vector, 1))
				written += before;
			break;
		case 1:
			got = server->transport.ops->read(&server->transport, data,
							  1 + random_below(sizeof(data)));
			if (got > (ssize_t)sizeof(data))
				rc = 1;
			read += got > 0 ? (uint64_t)got : 0;
			break;
		case 2:
			if (!random_below(8))
				shutdown(on < 0 ? ends[1] : on, (int)random_below(3));
			break;
		case 3:
			records_send(on < 0 ? ends[1] : on, written, options.bundles, others);
			break;
		default:
			if (socketpair(AF_UNIX, SOCK_STREAM, 0, fresh) < 0)
				return -1;
			proves = hello_send(server, fresh[1], written, also, others);
			connection_take(server, fresh[0], ++server->resume.handed);
			got = recv(fresh[1], data, sizeof(struct wire_hello_reply), MSG_DONTWAIT);
			accepted = got == (ssize_t)sizeof(struct wire_hello_reply) &&
				   ((struct wire_hello_reply *)data)->status == WIRE_HELLO_OK;
			if (accepted && !proves)
				rc = 2;
			if (accepted) {
				struct wire_resumed told;

				if (recv(fresh[1], &told, sizeof(told), MSG_DONTWAIT) != sizeof(told))
					rc = 3;
				if (also) {
					if (!options.bundles || !told.received ||
					    told.received >= BUNDLE_CONNECTIONS || others[told.received] >= 0)
						rc = 4;
					else
						others[told.received] = fresh[1];
					continue;
				}
				if (told.received != read)
					rc = 5;
				for (int i = 0; i < (int)BUNDLE_CONNECTIONS; i++)
					if (others[i] >= 0)
						close(others[i]);
				memset(others, -1, sizeof(others));
				close(ends[1]);
				ends[1] = fresh[1];
			} else {
				close(fresh[1]);
			}
		}
		while (recv(ends[1], data, sizeof(data), MSG_DONTWAIT) > 0)
			;
		for (int i = 0; i < (int)BUNDLE_CONNECTIONS; i++)
			while (others[i] >= 0 && recv(others[i], data, sizeof(data), MSG_DONTWAIT) > 0)
				;
	}
	server->transport.ops->shutdown(&server->transport);
	return rc;
}

/* A process each: threads of a round may outlast it. */
static int round_apart(uint64_t number)
{
	int status = 0;
	pid_t round = fork();

	if (round == 0) {
		alarm(20);
		_exit(round_run(number) & 0xff);
	}
	return round < 0 || waitpid(round, &status, 0) < 0 ? -1 : status;
}

int main(int argc, char **argv)
{
	return rounds_run(argc, argv, "remoting_resume", round_apart);
}
