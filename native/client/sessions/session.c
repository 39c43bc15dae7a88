/* Opening the sessions: the connections, the hellos.  Each server has a session of its own; the program sees
 * the devices of all as one list. */
#include "../ground/guest.h"
#include "../ground/message.h"
#include "ending.h"
#include "resume.h"
#include "session.h"
#include "session_file.h"
#include "visible.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../transport/ground/clofork.h"
#include "../../transport/ground/thread.h"
#include "../../transport/rings/rdma.h"
#include "../../transport/rings/shm.h"
#include "../../transport/sockets/bundle.h"
#include "../../transport/sockets/socket.h"
#include "../../transport/sockets/tls.h"
#include "../../wire/digest.h"
#include "../../wire/proof.h"

/* A server on the same network answers in milliseconds; the rest is patience. */
#define CONNECT_TIMEOUT_MS 5000
/* Starting the server process and its driver: seconds on a machine with 8 GPUs. */
#define HELLO_TIMEOUT_MS 60000

/* Is it reached by TCP?  Encrypted or not is the file's word alone: nothing that comes over
 * the network, or from the environment, changes it. */
static bool server_is_remote(const struct session_server *server)
{
	return (strcmp(server->transport, "tls") == 0 || strcmp(server->transport, "tcp") == 0) &&
	       server->port;
}

/* What FARBUS_TRANSPORT asks for. */
enum choice { CHOICE_AUTO, CHOICE_SHM, CHOICE_UNIX, CHOICE_TCP, CHOICE_RDMA, CHOICE_UNKNOWN };

static enum choice session_choice(void)
{
	static const char *const names[] = { "auto", "shm", "unix", "tcp", "rdma" };
	const char *chosen = getenv("FARBUS_TRANSPORT");
	int choice = CHOICE_AUTO;

	while (chosen && *chosen && choice < CHOICE_UNKNOWN && strcmp(chosen, names[choice]) != 0)
		choice++;
	return (enum choice)choice;
}

static int session_connect_unix(struct client_session *session, const char *name)
{
	int rc = transport_unix_connect(&session->transport, name, CONNECT_TIMEOUT_MS);

	if (!rc) {
		snprintf(session->local, sizeof(session->local), "%s", name);
		session->local_user = client_peer_user(&session->transport);
	}
	return rc;
}

/* What of the secret others may know, for one purpose. */
static void session_digest(const struct session_server *server, const char *domain, uint8_t digest[WIRE_DIGEST_BYTES])
{
	uint8_t message[sizeof(WIRE_SOCKET_DOMAIN) - 1 + WIRE_SECRET_BYTES];
	size_t domain_bytes = strlen(domain);

	_Static_assert(sizeof(WIRE_LOCAL_DOMAIN) <= sizeof(WIRE_SOCKET_DOMAIN) &&
		       sizeof(WIRE_LEASE_DOMAIN) <= sizeof(WIRE_SOCKET_DOMAIN), "the longest one");
	memcpy(message, domain, domain_bytes);
	memcpy(message + domain_bytes, server->secret, WIRE_SECRET_BYTES);
	wire_digest(message, domain_bytes + WIRE_SECRET_BYTES, digest);
	explicit_bzero(message, sizeof(message));
}

/* Connect to the socket of a supervisor that is called `before`, WIRE_LOCAL_NAME and the digest of `domain`
 * and the secret.  -ENAMETOOLONG: sockets' paths are shorter. */
static int session_connect_named(struct client_session *session, const struct session_server *server,
				 const char *before, size_t before_bytes, const char *domain)
{
	uint8_t digest[WIRE_DIGEST_BYTES];
	char name[sizeof(session->local)];
	char *at = name;

	if (before_bytes + sizeof(WIRE_LOCAL_NAME) + WIRE_LOCAL_HEX > sizeof(name))
		return -ENAMETOOLONG;
	session_digest(server, domain, digest);
	at += sprintf(at, "%.*s" WIRE_LOCAL_NAME, (int)before_bytes, before);
	for (int i = 0; i < WIRE_LOCAL_HEX / 2; i++)
		at += sprintf(at, "%02x", digest[i]);
	return session_connect_unix(session, name);
}

/* Where a supervisor of this machine listens for this secret: by its abstract name, which belongs to the
 * machine's network; in a container that has its own one, by the file that was put beside the session file. */
static int session_connect_local(struct client_session *session, const struct session_server *server)
{
	const char *slash = strrchr(server->file, '/');

	if (session_connect_named(session, server, "@", 1, WIRE_LOCAL_DOMAIN) == 0)
		return 0;
	return session_connect_named(session, server, server->file, slash ? (size_t)(slash + 1 - server->file) : 0,
				     WIRE_SOCKET_DOMAIN);
}

static int session_connect(struct client_session *session, const struct session_server *server,
			   enum choice choice)
{
	if (choice != CHOICE_TCP && choice != CHOICE_RDMA && server_is_remote(server)) {
		int rc = session_connect_local(session, server);

		snprintf(session->peer, sizeof(session->peer), "%s:%s", server->address, server->port);
		if (!rc || choice != CHOICE_AUTO)
			return rc;
	}
	if (server_is_remote(server)) {
		snprintf(session->peer, sizeof(session->peer), "%s:%s", server->address, server->port);
		return transport_tcp_connect(&session->transport, server->address, server->port,
					     CONNECT_TIMEOUT_MS);
	}
	if (strcmp(server->transport, "unix") == 0) {
		snprintf(session->peer, sizeof(session->peer), "%s", server->address);
		return session_connect_unix(session, server->address);
	}
	snprintf(session->peer, sizeof(session->peer), "%s", server->address);
	return -EPROTONOSUPPORT;
}

/* What goes over a network; NVML asks anew when its connection is lost. */
static bool session_may_resume(const struct client_session *session)
{
	return !farbus_client.management && client_resume_grace_ms() &&
	       strcmp(session->transport.ops->name, "tcp") == 0;
}

/* Go on encrypted behind a hello that was said in the clear, and say all of it.
 * -ENOMSG: the server refuses, in the clear; -EKEYREJECTED and -ENOPKG: the user has been told. */
static int session_encrypt(struct client_session *session, const struct session_server *server,
			   struct wire_hello *hello, const struct wire_hello *whole)
{
	uint8_t key[WIRE_DIGEST_BYTES];
	char why[TLS_WHY_BYTES];
	int rc;

	wire_hello_key(hello, server->secret, key);
	rc = transport_tls_start(&session->transport, key, false, HELLO_TIMEOUT_MS, why);
	explicit_bzero(key, sizeof(key));
	if (rc == -EACCES || rc == -EPROTONOSUPPORT) {
		client_message("%s: %s", session->peer, why);
		return rc == -EACCES ? -EKEYREJECTED : -ENOPKG;
	}
	if (rc)
		return rc;
	hello->process = whole->process;
	memcpy(hello->program, whole->program, sizeof(hello->program));
	return transport_write_all(&session->transport, hello, sizeof(*hello));
}

/* Get ready to go on by RDMA, where the operator lets a session do so.  NULL: it stays with TCP; -ENOPKG: which is not
 * what was asked for, and the user has been told. */
static int session_rdma(struct client_session *session, const struct session_server *server, enum choice choice,
			struct rdma **rdma)
{
	const char *why = NULL;
	char cause[RDMA_WHY_BYTES];

	*rdma = NULL;
	if (!server_is_remote(server) || !server->rdma)
		why = "its node and this one don't let it: set remoting_rdma = \"on\" for the agents of both";
	else if (!session_may_resume(session))
		why = "that needs a session that can be resumed: leave out FARBUS_GRACE_S=0";
	else if (choice != CHOICE_TCP && transport_rdma_make(rdma, &session->transport, cause))
		why = cause;
	if (!why || choice != CHOICE_RDMA || farbus_client.management)
		return 0;
	client_message("FARBUS_TRANSPORT asks for RDMA to %s: %s", session->peer, why);
	return -ENOPKG;
}

/* What the hello offers: `shm`, with its descriptor, which is closed, or `rdma`; or NULL. */
static int session_hello(struct client_session *session, const struct session_server *server,
			 struct shm *shm, int descriptor, const struct rdma *rdma, struct wire_hello_reply *reply,
			 char text[WIRE_HELLO_TEXT_BYTES + 1])
{
	struct wire_hello hello = wire_hello_ours();
	struct wire_hello whole = { .process = (uint32_t)getpid() };
	bool encrypt = strcmp(session->transport.ops->name, "tcp") == 0 &&
		       strcmp(server->transport, "tls") == 0;
	bool refused, late = false;
	int rc;

	hello.capabilities = shm ? WIRE_CAPABILITY_SHARED_MEMORY
			     : session_may_resume(session)
				     ? WIRE_CAPABILITY_RESUME | WIRE_CAPABILITY_WINDOWS | WIRE_CAPABILITY_PROMPT : 0;
	if (!session_may_resume(session))
		session->connections = 1;
	else
		session->connections = server->connections ? server->connections
							   : client_connections(&session->transport, &late);
	atomic_store(&session->connects_late, late);
	/* Within a building they gain nothing but by several threads of both sides. */
	if (session->connections > 1)
		hello.capabilities |= late ? WIRE_CAPABILITY_THREADS : WIRE_CAPABILITY_CONNECTIONS;
	if (rdma)
		hello.capabilities |= WIRE_CAPABILITY_RDMA;
	/* Within a machine a copy costs less than a digest. */
	if (strcmp(session->transport.ops->name, "tcp") == 0 && wire_digest_is_fast())
		hello.capabilities |= WIRE_CAPABILITY_IMAGES;
	strncpy(whole.program, program_invocation_short_name, sizeof(whole.program) - 1);
	if (encrypt) {
		hello.capabilities |= WIRE_CAPABILITY_TLS;
	} else {
		hello.process = whole.process;
		memcpy(hello.program, whole.program, sizeof(hello.program));
	}
	rc = wire_hello_prove(&hello, server->secret);
	session->connection = wire_hello_connection(&hello);
	if (rc && shm)
		clofork_close(descriptor);
	if (rc)
		return rc;
	if (shm) {
		rc = transport_write_descriptor(&session->transport, &hello, sizeof(hello), descriptor);
		clofork_close(descriptor);
	} else {
		rc = transport_write_all(&session->transport, &hello, sizeof(hello));
	}
	if (!rc && encrypt)
		rc = session_encrypt(session, server, &hello, &whole);
	refused = rc == -ENOMSG;
	if (rc && !refused)
		return rc;
	rc = transport_read_all(&session->transport, reply, sizeof(*reply), HELLO_TIMEOUT_MS);
	if (rc)
		return rc;
	if (reply->magic != WIRE_HELLO_MAGIC || reply->text_bytes > WIRE_HELLO_TEXT_BYTES ||
	    reply->device_count > WIRE_DEVICES)
		return -EPROTO;
	/* Nobody may talk this side out of encryption. */
	if (refused && reply->status == WIRE_HELLO_OK)
		return -EPROTO;
	rc = transport_read_all(&session->transport, text, reply->text_bytes, HELLO_TIMEOUT_MS);
	text[rc ? 0 : reply->text_bytes] = 0;
	client_printable(text);
	return rc;
}

static CUresult session_refused(const struct client_session *session,
				const struct wire_hello_reply *reply, const char *text)
{
	switch (reply->status) {
	case WIRE_HELLO_VERSION:
		client_message("%s speaks remoting protocol %u.%u and this shim %u.%u; "
			       "install the same version of farbus on both nodes",
			       session->peer, reply->major, reply->minor, WIRE_PROTOCOL_MAJOR,
			       WIRE_PROTOCOL_MINOR);
		return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	case WIRE_HELLO_SECRET:
		client_message("%s refuses the secret of this session: the lease has ended or the "
			       "session file is of another one; start the program with farbus run",
			       session->peer);
		return CUDA_ERROR_NOT_PERMITTED;
	case WIRE_HELLO_TLS:
		if (*text)
			client_message("%s: %s", session->peer, text);
		else
			client_message("%s and this node differ about encryption; set the same remoting_tls "
				       "for the agents of both", session->peer);
		return CUDA_ERROR_NOT_PERMITTED;
	case WIRE_HELLO_USER:
		client_message("%s refuses user %u of this machine: the lease is another user's",
			       session->peer, (unsigned)geteuid());
		return CUDA_ERROR_NOT_PERMITTED;
	case WIRE_HELLO_DRIVER:
		client_message("%s: %s", session->peer, *text ? text : "no usable CUDA driver");
		return reply->result ? (CUresult)reply->result : CUDA_ERROR_NO_DEVICE;
	default:
		client_message("%s refuses the session: %s", session->peer,
			       *text ? text : "no reason given");
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	}
}

static int session_devices(struct client_session *session, uint32_t count)
{
	session->devices = calloc(count ? count : 1, sizeof(*session->devices));
	if (!session->devices)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		struct client_device *device = &session->devices[i];
		unsigned domain = 0, bus = 0, number = 0;
		int rc = transport_read_all(&session->transport, &device->snapshot,
					    sizeof(device->snapshot), HELLO_TIMEOUT_MS);

		if (rc)
			return rc;
		device->session = session;
		device->server_ordinal = i;
		device->snapshot.name[sizeof(device->snapshot.name) - 1] = 0;
		device->snapshot.pci_bus_id[sizeof(device->snapshot.pci_bus_id) - 1] = 0;
		if (sscanf(device->snapshot.pci_bus_id, "%x:%x:%x", &domain, &bus, &number) != 3)
			domain = bus = number = 0;
		device->pci[0] = (int)domain;
		device->pci[1] = (int)bus;
		device->pci[2] = (int)number;
	}
	session->device_count = (int)count;
	return 0;
}

/* What to do where a server can't be connected to. */
static const char *session_connect_hint(const struct client_session *session, int rc)
{
	if (rc == -EMFILE)
		return "let this program have more descriptors (ulimit -n)";
	if (session->stranger)
		return "within this machine the supervisor refuses this user, since the lease is another's: "
		       "run the program as that one or root, in a container without users of its own";
	/* The loopback of a container that has a network of its own leads to itself. */
	if (strncmp(session->peer, "127.", 4) == 0 || strncmp(session->peer, "::1:", 4) == 0) {
		if (session_choice() == CHOICE_TCP)
			return "the lease may have ended; a container without --network host reaches a GPU of this "
			       "machine over shared memory alone: leave out FARBUS_TRANSPORT=tcp";
		return "the lease may have ended; a container needs its task's device for a GPU of this machine, "
		       "or --network host";
	}
	return "the lease may have ended";
}

static CUresult session_fail_open(struct client_session *session, int rc)
{
	transport_release(&session->transport);
	client_resume_drop(session);
	if (rc == -EKEYREJECTED)
		return CUDA_ERROR_NOT_PERMITTED;
	if (rc == -ENOPKG)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (rc == -ETIMEDOUT)
		client_message("%s does not answer; is the agent of that node running?",
			       session->peer);
	else
		client_message("connect to %s: %s; %s", session->peer, strerror(-rc),
			       session_connect_hint(session, rc));
	return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

/* What a hello has offered, to switch to or to drop; NULL: nothing. */
struct offer {
	struct shm *shm;
	struct rdma *rdma;
};

static void offer_drop(struct offer *offer)
{
	transport_shm_drop(offer->shm);
	transport_rdma_drop(offer->rdma);
	*offer = (struct offer){ NULL, NULL };
}

/* Connect and say hello. */
static int session_begin(struct client_session *session, const struct session_server *server,
			 enum choice choice, struct offer *offer, struct wire_hello_reply *reply,
			 char text[WIRE_HELLO_TEXT_BYTES + 1])
{
	int rc = session_connect(session, server, choice), memory = -1;

	if (rc) {
		if (choice == CHOICE_SHM || choice == CHOICE_UNIX)
			client_message("FARBUS_TRANSPORT asks for a server on this machine; "
				       "no supervisor of this lease listens here");
		return rc;
	}
	/* Without shared memory the session goes on over the socket. */
	if (choice <= CHOICE_SHM && !farbus_client.management &&
	    strcmp(session->transport.ops->name, "unix") == 0)
		(void)transport_shm_make(&offer->shm, &memory);
	session->transport.descriptor = client_raise_descriptor(session->transport.descriptor);
	if (strcmp(session->transport.ops->name, "tcp") == 0 || choice == CHOICE_RDMA)
		rc = session_rdma(session, server, choice, &offer->rdma);
	if (rc)
		return rc;
	rc = session_hello(session, server, offer->shm, memory, offer->rdma, reply, text);
	/* In a container with users of its own this one is somebody else to the supervisor. */
	if (rc || reply->status != WIRE_HELLO_USER || choice != CHOICE_AUTO || !server_is_remote(server))
		return rc;
	offer_drop(offer);
	transport_release(&session->transport);
	session->stranger = true;
	return session_begin(session, server, CHOICE_TCP, offer, reply, text);
}

static CUresult session_open(struct client_session *session, const struct session_server *server,
			     enum choice choice)
{
	bool management = farbus_client.management;
	char text[WIRE_HELLO_TEXT_BYTES + 1];
	uint8_t digest[WIRE_DIGEST_BYTES];
	struct wire_hello_reply reply;
	struct offer offer = { NULL, NULL };
	int rc;

	session->transport.descriptor = -1;
	atomic_store(&session->telling, 0);
	rc = session_begin(session, server, choice, &offer, &reply, text);
	if (rc) {
		offer_drop(&offer);
		return session_fail_open(session, rc);
	}
	if (reply.status != WIRE_HELLO_OK) {
		offer_drop(&offer);
		transport_release(&session->transport);
		return session_refused(session, &reply, text);
	}
	memcpy(session->operations, reply.operations, sizeof(session->operations));
	session->major = reply.major;
	session->minor = reply.minor;
	session->number = reply.session;
	wire_resume_key(server->secret, reply.session, session->key);
	session_digest(server, WIRE_LEASE_DOMAIN, digest);
	memcpy(session->lease, digest, sizeof(session->lease));
	session->own_lane = reply.minor >= WIRE_LANE_OWN_MINOR;
	session->keeps_images = reply.capabilities & WIRE_CAPABILITY_IMAGES;
	rc = session_devices(session, reply.device_count);
	if (!rc && (reply.capabilities & WIRE_CAPABILITY_RESUME))
		rc = client_resume_begin(session, server->address, server->port, server->secret,
					 &reply, &offer.rdma);
	if (offer.shm && (reply.capabilities & WIRE_CAPABILITY_SHARED_MEMORY)) {
		transport_shm_switch(&session->transport, offer.shm, false);
		offer.shm = NULL;
	}
	offer_drop(&offer);
	if (!rc && choice == CHOICE_SHM && !management && !session->transport.shm) {
		client_message("FARBUS_TRANSPORT asks for shared memory, which this server does not give");
		rc = -EPROTONOSUPPORT;
	}
	if (!rc && choice == CHOICE_RDMA && !management && strcmp(session->transport.ops->name, "rdma") != 0) {
		client_message("FARBUS_TRANSPORT asks for RDMA to %s: %s", session->peer,
			       reply.capabilities & WIRE_CAPABILITY_RDMA
				       ? "the network between carries none (UDP port 4791, or packets of the adapters' size)"
				       : "its node has none for that address, as the log of its agent then says, or its agent is without "
					 "remoting_rdma = \"on\"");
		rc = -ENOPKG;
	}
	if (!rc)
		rc = inbox_init(&session->inbox, &session->transport);
	if (!rc)
		rc = outbox_init(&session->outbox, &session->transport);
	if (rc)
		return session_fail_open(session, rc);
	session->driver_version = reply.driver_version;
	session->patient = inbox_has_processors();
	return CUDA_SUCCESS;
}

/* ---- all sessions ---- */

/* One of several sessions that are opened at the same time. */
struct opening {
	struct client_session *session;
	const struct session_server *server;
	enum choice choice;
	CUresult result;
	pthread_t thread;
	bool started;
};

static void *opening_run(void *opaque)
{
	struct opening *opening = opaque;

	opening->result = session_open(opening->session, opening->server, opening->choice);
	return NULL;
}

/* The first server's failure in the file's order; each has said its own on stderr.  NVML does with
 * those that answer, if one does: the others' sessions are dead, and have no device. */
static CUresult sessions_open(struct client *client, const struct session_file *file,
			      enum choice choice)
{
	struct opening openings[CLIENT_SERVERS];
	CUresult result = CUDA_SUCCESS;
	bool some = false;

	for (unsigned i = 0; i < file->count; i++) {
		client->sessions[i].index = i;
		openings[i] = (struct opening){
			.session = &client->sessions[i],
			.server = &file->servers[i],
			.choice = choice,
		};
		/* The last, or the only one, is this thread's. */
		if (i + 1 < file->count)
			openings[i].started = transport_thread_start(&openings[i].thread, opening_run,
								     &openings[i]) == 0;
		if (!openings[i].started)
			opening_run(&openings[i]);
	}
	for (unsigned i = 0; i < file->count; i++) {
		if (openings[i].started)
			pthread_join(openings[i].thread, NULL);
		if (result == CUDA_SUCCESS)
			result = openings[i].result;
		if (openings[i].result != CUDA_SUCCESS)
			client->sessions[i].device_count = 0;
		else
			some = true;
		atomic_store(&client->sessions[i].dead, openings[i].result != CUDA_SUCCESS);
	}
	client->session_count = file->count;
	if (client->management && some)
		result = CUDA_SUCCESS;
	for (unsigned i = 0; i < file->count && result != CUDA_SUCCESS; i++) {
		if (openings[i].result == CUDA_SUCCESS) {
			/* Said, or a server that may be resumed waits for this program. */
			client->sessions[i].transport.ops->shutdown(&client->sessions[i].transport);
			inbox_release(&client->sessions[i].inbox);
			outbox_release(&client->sessions[i].outbox);
			transport_release(&client->sessions[i].transport);
			client_resume_drop(&client->sessions[i]);
		}
		free(client->sessions[i].devices);
		client->sessions[i].devices = NULL;
	}
	return result;
}

CUresult client_sessions_open(struct client *client)
{
	const char *path = getenv("FARBUS_SESSION"), *text = getenv("FARBUS_CONNECTIONS");
	const char *managed = getenv("FARBUS_MANAGED_MEMORY");
	const char *mapped = getenv("FARBUS_MAPPED_MEMORY");
	unsigned connections = client_connections_decode(text);
	enum choice choice = session_choice();
	struct session_file *file;
	CUresult result;
	int rc;

	if (choice == CHOICE_UNKNOWN) {
		client_message("FARBUS_TRANSPORT is \"%s\": set it to auto, shm, unix, tcp or rdma",
			       getenv("FARBUS_TRANSPORT"));
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (text && *text && !connections) {
		client_message("FARBUS_CONNECTIONS is \"%s\": set it to a number from 1 to %u", text,
			       BUNDLE_CONNECTIONS);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (managed && *managed && strcmp(managed, "paging") && strcmp(managed, "copies")) {
		client_message("FARBUS_MANAGED_MEMORY is \"%s\": set it to paging or copies", managed);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (mapped && *mapped && strcmp(mapped, "managed")) {
		client_message("FARBUS_MAPPED_MEMORY is \"%s\": set it to managed", mapped);
		return CUDA_ERROR_INVALID_VALUE;
	}
	client->mapping = mapped && *mapped ? MAPPING_MANAGED : MAPPING_NONE;
	if (!client_resume_grace_check())
		return CUDA_ERROR_INVALID_VALUE;
	if (!path) {
		client_message("no remote GPU: FARBUS_SESSION is not set; "
			       "start the program with farbus run");
		return CUDA_ERROR_NO_DEVICE;
	}
	file = calloc(1, sizeof(*file));
	if (!file)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = client_session_file_load(file, path);
	if (!rc)
		rc = client_session_file_parse(file, path);
	/* The program's word counts before its agent's. */
	for (unsigned i = 0; connections && i < file->count; i++)
		file->servers[i].connections = connections;
	if (!rc)
		result = sessions_open(client, file, choice);
	else
		result = rc == -EPERM ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_NO_DEVICE;
	explicit_bzero(file, sizeof(*file));
	free(file);
	if (result != CUDA_SUCCESS)
		return result;
	rc = client_devices_number(client);
	if (!rc && !client->management)
		rc = client_devices_choose(client);
	if (rc)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* What all servers' drivers have. */
	client->driver_version = CLIENT_DRIVER_VERSION;
	for (unsigned i = 0; i < client->session_count; i++) {
		struct client_session *session = &client->sessions[i];

		if (atomic_load(&session->dead))
			continue;
		if (session->driver_version < client->driver_version)
			client->driver_version = session->driver_version;
		client_resume_connect(session);
	}
	return CUDA_SUCCESS;
}
