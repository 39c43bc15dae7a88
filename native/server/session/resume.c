/* A session that goes on after its connection was cut: the supervisor hands over new ones.
 *
 * One thread waits for them, also while the connection that there is looks alive: a client that
 * comes again knows better.  It enters neither the driver nor anything that waits for a client:
 * each connection proves on a thread of its own whose it is, since it may be cut meanwhile, and
 * the next one is then on its way.  The newest that does has the session.
 */
#include "../ground/frames.h"
#include "resume.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../transport/resumed/resume.h"
#include "../../transport/rings/rdma.h"
#include "../../transport/sockets/socket.h"
#include "../../transport/sockets/tls.h"
#include "../../wire/proof.h"

/* The supervisor has seen the whole hello; what follows of a handshake comes in round trips. */
#define RESUME_HELLO_TIMEOUT_MS 3000
/* Connections that prove at one time whose they are; a client makes one after the other. */
#define RESUME_WAITING_LIMIT 16u
/* A connection that the client's machine has closed or reset, without a word.  Mostly the program
 * was killed or has crashed, and its device's memory should not lie idle for long; a program that
 * lives, behind a relay that was started again, notices within 3 s (TCP_KEEPIDLE in
 * transport/sockets/socket.c) and comes at once. */
#define CLOSED_GRACE_MS 5000u

/* One datagram with one descriptor.  -1: the supervisor has gone. */
static int descriptor_receive(int channel)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec vector = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	int descriptor;
	ssize_t got = recvmsg(channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (got < 0)
		return errno == EAGAIN || errno == EINTR ? -EAGAIN : -EPIPE;
	if (!got)
		return -EPIPE;
	descriptor = transport_descriptor_of(&message);
	return descriptor >= 0 ? descriptor : -EAGAIN;
}

static void resume_answer(struct transport *fresh, const struct server *server,
			  enum wire_hello_status status, uint64_t received, uint64_t also)
{
	static const char text[] = "the session has ended, or is another's";
	const struct wire_hello_reply reply = {
		.magic = WIRE_HELLO_MAGIC,
		.major = WIRE_PROTOCOL_MAJOR,
		.minor = WIRE_PROTOCOL_MINOR,
		.status = status,
		.spec_version = WIRE_SPEC_VERSION,
		.capabilities = WIRE_CAPABILITY_RESUME | also,
		.session = status == WIRE_HELLO_OK ? server->resume.session : 0,
		.text_bytes = status == WIRE_HELLO_OK ? 0 : sizeof(text) - 1,
	};
	const struct wire_resumed told = { .received = received };

	/* A few hundred bytes into a fresh socket: nothing to wait for, and whether they
	 * arrive shows soon enough. */
	if (transport_write_all(fresh, &reply, sizeof(reply)))
		return;
	(void)(status == WIRE_HELLO_OK ? transport_write_all(fresh, &told, sizeof(told))
				       : transport_write_all(fresh, text, reply.text_bytes));
}

/* Does it come from who has the secret, for this session, encrypted or not as that is? */
static bool hello_proves(const struct server *server, const struct wire_hello *hello)
{
	bool secret = wire_hello_proves(hello, server->resume.key);

	return hello->magic == WIRE_HELLO_MAGIC && hello->major == WIRE_PROTOCOL_MAJOR &&
	       hello->byte_order == WIRE_BYTE_ORDER && hello->session == server->resume.session &&
	       server->resume.tls == !!(hello->capabilities & WIRE_CAPABILITY_TLS) && secret;
}

/* Does it come from the session's own client, too? */
static bool hello_has_token(const struct server *server, const struct wire_hello *hello)
{
	return wire_secrets_equal((const uint8_t *)hello->program, server->resume.token, WIRE_TOKEN_BYTES);
}

/* Go on encrypted, where all of the hello is said again. */
static int hello_encrypt(const struct server *server, struct transport *fresh, struct wire_hello *hello)
{
	struct wire_hello clear = *hello;
	uint8_t key[WIRE_DIGEST_BYTES];
	char why[TLS_WHY_BYTES];
	int rc;

	wire_hello_key(hello, server->resume.key, key);
	rc = transport_tls_start(fresh, key, true, RESUME_HELLO_TIMEOUT_MS, why);
	explicit_bzero(key, sizeof(key));
	if (!rc)
		rc = transport_read_all(fresh, hello, sizeof(*hello), RESUME_HELLO_TIMEOUT_MS);
	if (rc)
		return rc;
	clear.process = hello->process;
	memcpy(clear.program, hello->program, sizeof(clear.program));
	return memcmp(&clear, hello, sizeof(clear)) ? -EPROTO : 0;
}

/* It is one more of the session's, beside the one that it names.  Who adds it tells its number, and
 * nothing else is written to it before the answer has gone. */
static void connection_add(struct server *server, struct transport *fresh, const struct wire_hello *hello)
{
	struct transport added = *fresh;
	int number = -ESTALE;

	if (hello_has_token(server, hello) && server->resume.bundles &&
	    hello->received == server->resume.connection)
		number = transport_resume_join(&server->transport, fresh, server->resume.generation, 0);
	/* The session may read from it by now.  It is closed by the session's next connection alone, which
	 * waits for the lock that is held. */
	resume_answer(&added, server, number > 0 ? WIRE_HELLO_OK : WIRE_HELLO_SESSION,
		      number > 0 ? (uint64_t)number : 0, 0);
	if (number > 0)
		transport_resume_joined(&server->transport, server->resume.generation, (unsigned)number);
	if (number < 0)
		transport_release(fresh);
}

static void connection_take(struct server *server, int descriptor, uint64_t number)
{
	struct transport fresh;
	struct wire_hello hello;
	char why[RDMA_WHY_BYTES];
	struct rdma *rdma = NULL;
	uint64_t received;
	bool accepted;

	if (transport_socket_init(&fresh, descriptor)) {
		close(descriptor);
		return;
	}
	if (transport_read_all(&fresh, &hello, sizeof(hello), RESUME_HELLO_TIMEOUT_MS) ||
	    !hello_proves(server, &hello) ||
	    (server->resume.tls && hello_encrypt(server, &fresh, &hello))) {
		transport_release(&fresh);
		return;
	}
	pthread_mutex_lock(&server->resume.lock);
	if (hello.capabilities & WIRE_CAPABILITY_CONNECTIONS) {
		connection_add(server, &fresh, &hello);
		pthread_mutex_unlock(&server->resume.lock);
		return;
	}
	accepted = hello_has_token(server, &hello) && number > server->resume.taken &&
		   !transport_resume_hold(&server->transport, hello.received, &received);
	if (accepted)
		server->resume.taken = number;
	pthread_mutex_unlock(&server->resume.lock);
	/* What follows may be cut, or wait for a peer that has fallen silent: a newer one does not wait for that.  As the
	 * first connection tried, even where it did not succeed. */
	if (accepted && server->resume.rdma && hello.capabilities & WIRE_CAPABILITY_RDMA)
		(void)transport_rdma_make(&rdma, &fresh, why);
	resume_answer(&fresh, server, accepted ? WIRE_HELLO_OK : WIRE_HELLO_SESSION,
		      accepted ? received : 0, rdma ? WIRE_CAPABILITY_RDMA : 0);
	if (!accepted || (rdma && transport_rdma_start(&fresh, rdma, true, RESUME_HELLO_TIMEOUT_MS))) {
		transport_release(&fresh);
		return;
	}
	pthread_mutex_lock(&server->resume.lock);
	/* What was told of the stream holds as long as nobody else has gone on with it. */
	if (server->resume.taken == number) {
		server_status_carried(server, &fresh);
		(void)transport_resume_adopt(&server->transport, &fresh, hello.received);
		server->resume.connection = wire_hello_connection(&hello);
		server->resume.generation = transport_resume_generation(&server->transport);
	} else {
		transport_release(&fresh);
	}
	pthread_mutex_unlock(&server->resume.lock);
}

struct connection {
	struct server *server;
	int descriptor;
	uint64_t number;
};

static void *connection_thread(void *opaque)
{
	struct connection *connection = opaque;
	struct server_resume *resume = &connection->server->resume;

	connection_take(connection->server, connection->descriptor, connection->number);
	free(connection);
	pthread_mutex_lock(&resume->lock);
	resume->waiting--;
	pthread_mutex_unlock(&resume->lock);
	return NULL;
}

static void connection_start(struct server *server, int descriptor)
{
	struct connection *connection = malloc(sizeof(*connection));
	struct server_resume *resume = &server->resume;
	pthread_attr_t detached;
	pthread_t thread;
	bool room;

	pthread_mutex_lock(&resume->lock);
	room = connection && resume->waiting < RESUME_WAITING_LIMIT;
	if (room) {
		*connection = (struct connection){ server, descriptor, ++resume->handed };
		resume->waiting++;
	}
	pthread_mutex_unlock(&resume->lock);
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	if (room && !pthread_create(&thread, &detached, connection_thread, connection)) {
		pthread_attr_destroy(&detached);
		return;
	}
	/* The client comes again. */
	pthread_attr_destroy(&detached);
	close(descriptor);
	free(connection);
	if (room) {
		pthread_mutex_lock(&resume->lock);
		resume->waiting--;
		pthread_mutex_unlock(&resume->lock);
	}
}

static void *resume_thread(void *opaque)
{
	struct server *server = opaque;
	struct pollfd channel = { .fd = server->resume.channel, .events = POLLIN };

	for (;;) {
		int descriptor;

		if (poll(&channel, 1, TRANSPORT_LOOK_MS) <= 0) {
			transport_resume_look(&server->transport);
			continue;
		}
		descriptor = descriptor_receive(channel.fd);
		if (descriptor == -EPIPE)
			return NULL;
		if (descriptor >= 0)
			connection_start(server, descriptor);
	}
}

bool server_resume_may(const struct server *server, const struct server_options *options)
{
	return options->resume_channel > 0 && options->session && options->grace_ms &&
	       strcmp(server->transport.ops->name, "tcp") == 0;
}

/* While the options have the secret. */
void server_resume_prepare(struct server *server, const struct server_options *options,
			   const struct wire_hello *hello, uint64_t granted)
{
	pthread_mutex_init(&server->resume.lock, NULL);
	server->resume.channel = options->resume_channel;
	server->resume.session = options->session;
	server->resume.grace_ms = options->grace_ms;
	server->resume.tls = options->tls;
	server->resume.grows = granted & WIRE_CAPABILITY_WINDOWS;
	server->resume.prompt = server->resume.grows && granted & WIRE_CAPABILITY_PROMPT;
	server->resume.rdma = granted & WIRE_CAPABILITY_RDMA;
	server->resume.bundles = granted & (WIRE_CAPABILITY_CONNECTIONS | WIRE_CAPABILITY_THREADS);
	server->resume.connection = wire_hello_connection(hello);
	wire_resume_key(options->secret, options->session, server->resume.key);
}

int server_resume_grant(struct server *server)
{
	struct wire_resume_grant grant = { .grace_ms = server->resume.grace_ms };
	int rc;

	if (getrandom(grant.token, sizeof(grant.token), 0) != sizeof(grant.token))
		return -EIO;
	memcpy(server->resume.token, grant.token, sizeof(server->resume.token));
	rc = transport_write_all(&server->transport, &grant, sizeof(grant));
	explicit_bzero(&grant, sizeof(grant));
	return rc;
}

int server_resume_start(struct server *server)
{
	const struct resume_options options = {
		.grace_ms = server->resume.grace_ms,
		.grows = server->resume.grows,
		.prompt = server->resume.prompt,
		.bundles = server->resume.bundles,
		.closed_grace_ms = server->resume.grace_ms < CLOSED_GRACE_MS ? server->resume.grace_ms
									     : CLOSED_GRACE_MS,
	};
	pthread_attr_t detached;
	pthread_t thread;
	int rc = transport_resume_wrap(&server->transport, &options);

	if (rc)
		return rc;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &detached, resume_thread, server);
	pthread_attr_destroy(&detached);
	return -rc;
}
