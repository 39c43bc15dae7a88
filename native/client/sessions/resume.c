/* A session that goes on after its connection was cut: the client dials again. */
#include "../ground/message.h"
#include "ending.h"
#include "resume.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../transport/ground/clofork.h"
#include "../../transport/ground/crew.h"
#include "../../transport/ground/thread.h"
#include "../../transport/resumed/resume.h"
#include "../../transport/rings/rdma.h"
#include "../../transport/sockets/bundle.h"
#include "../../transport/sockets/socket.h"
#include "../../transport/sockets/tls.h"
#include "../../wire/proof.h"

/* How long a session may be cut.  A switch restarts within seconds, and a person at a
 * terminal waits no longer for a program that stands still. */
#define GRACE_DEFAULT_MS 30000u
#define GRACE_MOST_S 86400u
/* One attempt to connect.  Whoever answers does so in milliseconds; a lost first packet is
 * sent again after one second. */
#define DIAL_TIMEOUT_MS 3000
/* A machine that refuses so long is up, and has no supervisor of this lease any more. */
#define REFUSED_NS 1000000000u
/* What breaks again so soon each time is not tried for ever: the session then stays with TCP. */
#define RDMA_SHORT_NS 10000000000u
#define RDMA_SHORT_MOST 3u
/* A cut that is over sooner is nobody's affair. */
#define QUIET_NS 2000000000u
#define GRANT_TIMEOUT_MS 10000

/* Where a round trip takes so long, what the kernel's buffers hold for one connection (4 to 6 MiB) is less than the network
 * does: 20 Gb/s for 2 ms. */
#define FAR_US 2000u
/* There, and where several threads may carry what is large (bundle.h). */
#define SEVERAL_CONNECTIONS 4u

struct client_resume {
	char *address;
	char *port;
	uint8_t key[WIRE_SECRET_BYTES];	/* wire_resume_key */
	uint8_t token[WIRE_TOKEN_BYTES];
	uint64_t session;
	bool tls;
	uint64_t connection;		/* wire_hello_connection of the first one's */
	bool bundles;			/* the server has granted further connections */
	bool rdma;			/* it is asked for, whenever there is a new connection */
	unsigned rdma_short;		/* times in turn that it broke soon */
	uint64_t rdma_ns;		/* when it began last; 0: the connection there is is another */
	pthread_mutex_t joining;	/* by who connects those */
	/* Of the cut that goes on. */
	uint64_t cut_ns;
	uint64_t refused_ns;		/* since when every attempt was; 0: the last was not */
	bool said;
};

void client_session_let_go(struct client_session *session)
{
	if (session->transport.resume)
		transport_resume_let_go(&session->transport);
	session->transport.descriptor = -1;
}

/* Within a machine a long round trip is a busy processor. */
static bool is_far(const struct transport *transport)
{
	socklen_t size = sizeof(struct tcp_info);
	struct tcp_info info;

	memset(&info, 0, sizeof(info));
	return !transport_is_local(transport->descriptor) &&
	       getsockopt(transport->descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_rtt >= FAR_US;
}

unsigned client_connections(const struct transport *transport, bool *late)
{
	bool far = is_far(transport);

	/* Few programs that use a near GPU copy much. */
	*late = !far;
	return far || crew_has_processors() ? SEVERAL_CONNECTIONS : 1;
}

/* What FARBUS_GRACE_S asks for.  false: it is no such time. */
static bool grace_decode(uint32_t *grace_ms)
{
	const char *text = getenv("FARBUS_GRACE_S");
	unsigned long seconds;
	char *end;

	*grace_ms = GRACE_DEFAULT_MS;
	if (!text || !*text)
		return true;
	seconds = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || seconds > GRACE_MOST_S)
		return false;
	*grace_ms = (uint32_t)seconds * 1000;
	return true;
}

bool client_resume_grace_check(void)
{
	uint32_t grace_ms;
	bool right = grace_decode(&grace_ms);

	if (!right)
		client_message("FARBUS_GRACE_S is \"%s\": set it to seconds, at most %u", getenv("FARBUS_GRACE_S"),
			       GRACE_MOST_S);
	return right;
}

uint32_t client_resume_grace_ms(void)
{
	uint32_t grace_ms;

	/* One that the program has made wrong since is as none. */
	(void)grace_decode(&grace_ms);
	return grace_ms;
}

/* Say once per cut that calls wait. */
static void say_cut(struct client_session *session, int left_ms)
{
	struct client_resume *resume = session->resume;
	uint64_t now = transport_now_ns();

	if (!resume->cut_ns)
		resume->cut_ns = now;
	if (resume->said || now - resume->cut_ns < QUIET_NS)
		return;
	resume->said = true;
	client_message("the connection to the GPU at %s is cut; CUDA calls wait up to %d s for it",
		       session->peer, (left_ms + 999) / 1000);
}

static void resumed(void *opaque)
{
	struct client_session *session = opaque;
	struct client_resume *resume = session->resume;

	if (resume->said)
		client_message("the connection to the GPU at %s is back after %d s", session->peer,
			       (int)((transport_now_ns() - resume->cut_ns + 500000000u) / 1000000000u));
	resume->cut_ns = 0;
	resume->refused_ns = 0;
	resume->said = false;
	client_resume_connect(session);
}

/* Say the hello: whole in the clear, or first without the token, which only the server's TLS hears.
 * -ENOMSG: the server refuses, in the clear. */
static int hello_say(const struct client_resume *resume, struct transport *fresh, int timeout_ms,
		     struct wire_hello *hello)
{
	const uint32_t process = (uint32_t)getpid();
	uint8_t key[WIRE_DIGEST_BYTES];
	char why[TLS_WHY_BYTES];
	int rc;

	if (!resume->tls) {
		hello->process = process;
		memcpy(hello->program, resume->token, sizeof(resume->token));
	}
	rc = wire_hello_prove(hello, resume->key);
	if (!rc)
		rc = transport_write_all(fresh, hello, sizeof(*hello));
	if (rc || !resume->tls)
		return rc;
	wire_hello_key(hello, resume->key, key);
	rc = transport_tls_start(fresh, key, false, timeout_ms, why);
	explicit_bzero(key, sizeof(key));
	if (rc)
		return rc;
	hello->process = process;
	memcpy(hello->program, resume->token, sizeof(resume->token));
	return transport_write_all(fresh, hello, sizeof(*hello));
}

/* Get ready to go on by RDMA.  NULL: over TCP. */
static struct rdma *rdma_again(struct client_resume *resume, const struct transport *fresh)
{
	bool was_short = resume->rdma_ns && transport_now_ns() - resume->rdma_ns < RDMA_SHORT_NS;
	char why[RDMA_WHY_BYTES];
	struct rdma *rdma;

	resume->rdma_short = was_short ? resume->rdma_short + 1 : resume->rdma_ns ? 0 : resume->rdma_short;
	resume->rdma_ns = 0;
	if (!resume->rdma || resume->rdma_short >= RDMA_SHORT_MOST)
		return NULL;
	return transport_rdma_make(&rdma, fresh, why) ? NULL : rdma;
}

static void rdma_note(struct client_resume *resume, const struct transport *transport)
{
	resume->rdma_ns = transport_is_rdma(transport) ? transport_now_ns() : 0;
}

/* Say which session goes on here, and hear what the server has of it; or to which connection of it
 * this one is added, and hear its number.  *rdma is offered, and NULL if it was taken over. */
static int resume_hello(struct client_session *session, struct transport *fresh, bool also, struct rdma **rdma,
			uint64_t received, int timeout_ms, uint64_t *peer_received)
{
	struct client_resume *resume = session->resume;
	struct wire_hello hello = wire_hello_ours();
	char text[WIRE_HELLO_TEXT_BYTES];
	struct wire_hello_reply reply;
	struct wire_resumed told;
	bool refused;
	int rc;

	hello.capabilities = WIRE_CAPABILITY_RESUME | (resume->tls ? WIRE_CAPABILITY_TLS : 0) |
			     (also ? WIRE_CAPABILITY_CONNECTIONS : 0) | (*rdma ? WIRE_CAPABILITY_RDMA : 0);
	hello.session = resume->session;
	hello.received = received;
	rc = hello_say(resume, fresh, timeout_ms, &hello);
	if (!also)
		resume->connection = wire_hello_connection(&hello);
	explicit_bzero(&hello, sizeof(hello));
	/* Nor will there be encryption later. */
	if (rc == -EPROTONOSUPPORT)
		return rc;
	refused = rc == -ENOMSG;
	if (!rc || refused)
		rc = transport_read_all(fresh, &reply, sizeof(reply), timeout_ms);
	if (!rc && (reply.magic != WIRE_HELLO_MAGIC || reply.text_bytes > sizeof(text)))
		return -EPROTO;
	if (!rc)
		rc = transport_read_all(fresh, text, reply.text_bytes, timeout_ms);
	/* Cut again: the network is not back yet. */
	if (rc)
		return -EAGAIN;
	if (reply.status == WIRE_HELLO_SESSION)
		client_session_ended(session, text, reply.text_bytes);
	if (reply.status != WIRE_HELLO_OK)
		return -EPIPE;
	/* Nobody may talk this side out of encryption. */
	if (refused)
		return -EPROTO;
	if (transport_read_all(fresh, &told, sizeof(told), timeout_ms))
		return -EAGAIN;
	*peer_received = told.received;
	if (!*rdma || !(reply.capabilities & WIRE_CAPABILITY_RDMA))
		return 0;
	rc = transport_rdma_start(fresh, *rdma, false, timeout_ms);
	*rdma = NULL;
	rdma_note(resume, fresh);
	return rc ? -EAGAIN : 0;
}

static int dial(void *opaque, uint64_t received, int left_ms, struct transport *fresh,
		uint64_t *peer_received)
{
	struct client_session *session = opaque;
	struct client_resume *resume = session->resume;
	int timeout_ms = left_ms < DIAL_TIMEOUT_MS ? left_ms : DIAL_TIMEOUT_MS;
	uint64_t now = transport_now_ns();
	struct transport_target target;
	struct rdma *rdma;
	int rc;

	say_cut(session, left_ms);
	rc = transport_tcp_socket(resume->address, resume->port, &target);
	if (rc >= 0)
		rc = transport_tcp_join(fresh, rc, &target, timeout_ms);
	if (!rc) {
		resume->refused_ns = 0;
		rdma = rdma_again(resume, fresh);
		rc = resume_hello(session, fresh, false, &rdma, received, timeout_ms, peer_received);
		transport_rdma_drop(rdma);
		if (rc)
			transport_release(fresh);
		return rc;
	}
	if (rc != -ECONNREFUSED)
		resume->refused_ns = 0;
	else if (!resume->refused_ns)
		resume->refused_ns = now;
	else if (now - resume->refused_ns >= REFUSED_NS)
		return -EPIPE;
	return -EAGAIN;
}

/* ---- further connections ---- */

struct joining {
	struct client_session *session;
	uint64_t connection;		/* the one that they are added to */
	uint64_t generation;
};

/* Add one.  0, or there is no use in another. */
static int join(const struct joining *joining)
{
	struct client_session *session = joining->session;
	struct transport fresh = { .descriptor = -1 };
	struct transport_target target;
	struct rdma *none = NULL;
	uint64_t number;
	int rc = transport_tcp_socket(session->resume->address, session->resume->port, &target);

	if (rc >= 0)
		rc = transport_tcp_join(&fresh, clofork_raise(rc, session->transport.descriptor), &target,
					DIAL_TIMEOUT_MS);
	if (rc)
		return rc;
	rc = resume_hello(session, &fresh, true, &none, joining->connection, DIAL_TIMEOUT_MS, &number);
	if (!rc && (!number || number >= BUNDLE_CONNECTIONS))
		rc = -EPROTO;
	if (!rc)
		rc = transport_resume_join(&session->transport, &fresh, joining->generation,
					   (unsigned)number);
	if (rc < 0)
		transport_release(&fresh);
	return rc < 0 ? rc : 0;
}

/* Without one of them the session does with those that there are. */
static void *join_thread(void *opaque)
{
	struct joining *joining = opaque;
	struct client_session *session = joining->session;
	struct client_resume *resume = session->resume;

	pthread_mutex_lock(&resume->joining);
	for (unsigned i = 1; i < session->connections; i++)
		if (transport_resume_generation(&session->transport) != joining->generation ||
		    join(joining))
			break;
	pthread_mutex_unlock(&resume->joining);
	free(joining);
	return NULL;
}

void client_resume_connect(struct client_session *session)
{
	struct client_resume *resume = session->resume;
	struct joining *joining;

	if (!resume || !resume->bundles || session->connections < 2 || atomic_load(&session->connects_late) ||
	    !transport_resume_may_join(&session->transport))
		return;
	joining = malloc(sizeof(*joining));
	if (!joining)
		return;
	*joining = (struct joining){
		.session = session,
		.connection = resume->connection,
		.generation = transport_resume_generation(&session->transport),
	};
	if (transport_thread_start(NULL, join_thread, joining))
		free(joining);
}

static void bulk(void *opaque)
{
	struct client_session *session = opaque;

	if (atomic_exchange(&session->connects_late, false))
		client_resume_connect(session);
}

int client_resume_begin(struct client_session *session, const char *address, const char *port,
			const uint8_t secret[WIRE_SECRET_BYTES],
			const struct wire_hello_reply *reply, struct rdma **rdma)
{
	struct resume_options options = {
		.dial = dial,
		.resumed = resumed,
		.bulk = bulk,
		.opaque = session,
		.grows = reply->capabilities & WIRE_CAPABILITY_WINDOWS,
		.prompt = reply->capabilities & WIRE_CAPABILITY_PROMPT,
		.bundles = session->connections > 1 &&
			   reply->capabilities & (WIRE_CAPABILITY_CONNECTIONS | WIRE_CAPABILITY_THREADS),
	};
	struct wire_resume_grant grant;
	struct client_resume *resume;
	int rc = transport_read_all(&session->transport, &grant, sizeof(grant), GRANT_TIMEOUT_MS);

	if (rc)
		return rc;
	resume = calloc(1, sizeof(*resume));
	if (!resume)
		return -ENOMEM;
	resume->address = strdup(address);
	resume->port = strdup(port);
	wire_resume_key(secret, reply->session, resume->key);
	memcpy(resume->token, grant.token, sizeof(resume->token));
	explicit_bzero(grant.token, sizeof(grant.token));
	resume->session = reply->session;
	resume->tls = session->transport.tls != NULL;
	resume->connection = session->connection;
	resume->bundles = options.bundles;
	pthread_mutex_init(&resume->joining, NULL);
	/* Longer than the server waits is waiting for nothing. */
	options.grace_ms = client_resume_grace_ms();
	if (options.grace_ms > grant.grace_ms)
		options.grace_ms = grant.grace_ms;
	options.closed_grace_ms = options.grace_ms;
	rc = resume->address && resume->port ? 0 : -ENOMEM;
	if (!rc && reply->capabilities & WIRE_CAPABILITY_RDMA && *rdma) {
		resume->rdma = true;
		rc = transport_rdma_start(&session->transport, *rdma, false, GRANT_TIMEOUT_MS);
		*rdma = NULL;
		rdma_note(resume, &session->transport);
	}
	if (!rc)
		rc = transport_resume_wrap(&session->transport, &options);
	session->resume = resume;
	if (rc)
		client_resume_drop(session);
	return rc;
}

void client_resume_drop(struct client_session *session)
{
	struct client_resume *resume = session->resume;

	session->resume = NULL;
	if (!resume)
		return;
	free(resume->address);
	free(resume->port);
	explicit_bzero(resume, sizeof(*resume));
	free(resume);
}

/* The program ends: tell the server, which else would wait whether it was only cut.  What is still
 * to come of CUDA calls, in other libraries' destructors, is told what a driver tells then. */
static void __attribute__((destructor)) client_farewell(void)
{
	struct client *client = &farbus_client;

	if (atomic_load(&client->state) == CLIENT_FORKED)
		return;
	for (unsigned i = 0; i < client->session_count; i++) {
		struct client_session *session = &client->sessions[i];

		if (!session->transport.resume)
			continue;
		client->ends_ns = transport_now_ns();
		atomic_store(&client->ending_thread, (int)syscall(SYS_gettid));
		client->failure = CUDA_ERROR_DEINITIALIZED;
		atomic_store(&client->state, CLIENT_FAILED);
		atomic_store(&session->dead, true);
		session->transport.ops->shutdown(&session->transport);
	}
}
