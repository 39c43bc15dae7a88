/* Opening a session: the session file, the connection, the hello. */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../wire/digest.h"

/* A server on the same network answers in milliseconds; the rest is patience. */
#define CONNECT_TIMEOUT_MS 5000
/* Starting the server process and its driver: seconds on a machine with 8 GPUs. */
#define HELLO_TIMEOUT_MS 60000
#define SESSION_FILE_BYTES 16384
/* Programs close and reuse low descriptors (daemons, shells, dup2 onto a fixed number):
 * the session's stays away from those, if the limit allows it. */
#define DESCRIPTOR_LOWEST 200

struct session_file {
	char text[SESSION_FILE_BYTES];
	const char *transport;		/* "tcp" or "unix" */
	const char *address;
	const char *port;
	uint8_t secret[WIRE_SECRET_BYTES];
	bool has_secret;
};

static bool hex_decode(const char *text, uint8_t *out, size_t bytes)
{
	if (strlen(text) != 2 * bytes)
		return false;
	for (size_t i = 0; i < bytes; i++) {
		unsigned value;
		int used = 0;

		if (sscanf(text + 2 * i, "%2x%n", &value, &used) != 1 || used != 2)
			return false;
		out[i] = (uint8_t)value;
	}
	return true;
}

static int session_file_load(struct session_file *file, const char *path)
{
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);
	struct stat status;
	ssize_t got;

	if (descriptor < 0) {
		int error = errno;

		client_message("open the session file %s: %s; start the program with farbus run",
			       path, strerror(error));
		return -error;
	}
	if (fstat(descriptor, &status) == 0 && (status.st_mode & 077)) {
		client_message("the session file %s can be read by others; it holds a secret: "
			       "chmod 600 it", path);
		close(descriptor);
		return -EPERM;
	}
	got = read(descriptor, file->text, sizeof(file->text) - 1);
	close(descriptor);
	if (got < 0)
		return -EIO;
	file->text[got] = 0;
	return 0;
}

/* One "key value..." per line.  Unknown keys are for newer shims. */
static int session_file_parse(struct session_file *file, const char *path)
{
	char *save = NULL;
	bool versioned = false;

	for (char *line = strtok_r(file->text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *words = NULL;
		const char *key = strtok_r(line, " \t", &words);

		if (!key || key[0] == '#')
			continue;
		if (strcmp(key, "farbus-session") == 0) {
			const char *version = strtok_r(NULL, " \t", &words);

			versioned = version && strcmp(version, "1") == 0;
		} else if (strcmp(key, "server") == 0 && !file->transport) {
			file->transport = strtok_r(NULL, " \t", &words);
			file->address = strtok_r(NULL, " \t", &words);
			file->port = strtok_r(NULL, " \t", &words);
		} else if (strcmp(key, "secret") == 0 && !file->has_secret) {
			const char *hex = strtok_r(NULL, " \t", &words);

			file->has_secret = hex && hex_decode(hex, file->secret, sizeof(file->secret));
		}
	}
	if (!versioned || !file->transport || !file->address || !file->has_secret) {
		client_message("the session file %s is malformed or of a newer version; "
			       "start the program with farbus run", path);
		return -EINVAL;
	}
	return 0;
}

/* What FARBUS_TRANSPORT asks for. */
enum choice { CHOICE_AUTO, CHOICE_SHM, CHOICE_UNIX, CHOICE_TCP, CHOICE_UNKNOWN };

static enum choice session_choice(void)
{
	static const char *const names[] = { "auto", "shm", "unix", "tcp" };
	const char *chosen = getenv("FARBUS_TRANSPORT");
	int choice = CHOICE_AUTO;

	while (chosen && *chosen && choice < CHOICE_UNKNOWN && strcmp(chosen, names[choice]) != 0)
		choice++;
	return (enum choice)choice;
}

/* The socket at which a supervisor of this machine listens for this secret. */
static int session_connect_local(struct client_session *session, const struct session_file *file)
{
	uint8_t message[sizeof(WIRE_LOCAL_DOMAIN) - 1 + WIRE_SECRET_BYTES];
	uint8_t digest[WIRE_DIGEST_BYTES];
	char name[1 + sizeof(WIRE_LOCAL_NAME) + WIRE_LOCAL_HEX] = "@" WIRE_LOCAL_NAME;
	char *at = name + strlen(name);

	memcpy(message, WIRE_LOCAL_DOMAIN, sizeof(WIRE_LOCAL_DOMAIN) - 1);
	memcpy(message + sizeof(WIRE_LOCAL_DOMAIN) - 1, file->secret, WIRE_SECRET_BYTES);
	wire_digest(message, sizeof(message), digest);
	explicit_bzero(message, sizeof(message));
	for (int i = 0; i < WIRE_LOCAL_HEX / 2; i++)
		at += sprintf(at, "%02x", digest[i]);
	return transport_unix_connect(&session->transport, name, CONNECT_TIMEOUT_MS);
}

static int session_connect(struct client_session *session, const struct session_file *file,
			   enum choice choice)
{
	if (choice != CHOICE_TCP && strcmp(file->transport, "tcp") == 0 && file->port) {
		int rc = session_connect_local(session, file);

		snprintf(session->peer, sizeof(session->peer), "%s:%s", file->address, file->port);
		if (!rc || choice != CHOICE_AUTO)
			return rc;
	}
	if (strcmp(file->transport, "tcp") == 0 && file->port) {
		snprintf(session->peer, sizeof(session->peer), "%s:%s", file->address, file->port);
		return transport_tcp_connect(&session->transport, file->address, file->port,
					     CONNECT_TIMEOUT_MS);
	}
	if (strcmp(file->transport, "unix") == 0) {
		snprintf(session->peer, sizeof(session->peer), "%s", file->address);
		return transport_unix_connect(&session->transport, file->address,
					      CONNECT_TIMEOUT_MS);
	}
	snprintf(session->peer, sizeof(session->peer), "%s", file->address);
	return -EPROTONOSUPPORT;
}

/* Move the connection to a high descriptor; where none is free, it stays. */
static void session_raise_descriptor(struct client_session *session)
{
	int low = session->transport.descriptor, lowest = DESCRIPTOR_LOWEST, high;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= DESCRIPTOR_LOWEST)
		lowest = (int)(limit.rlim_cur / 2);
	if (low < 0 || low >= lowest)
		return;
	high = fcntl(low, F_DUPFD_CLOEXEC, lowest);
	if (high < 0)
		return;
	session->transport.descriptor = high;
	close(low);
}

/* What goes over a network; NVML asks anew when its connection is lost. */
static bool session_may_resume(const struct client_session *session)
{
	return !farbus_client.management && client_resume_grace_ms() &&
	       strcmp(session->transport.ops->name, "tcp") == 0;
}

/* `shm` is what the hello offers, with its descriptor, which is closed; or NULL. */
static int session_hello(struct client_session *session, const struct session_file *file,
			 struct shm *shm, int descriptor, struct wire_hello_reply *reply,
			 char text[WIRE_HELLO_TEXT_BYTES + 1])
{
	struct wire_hello hello = {
		.magic = WIRE_HELLO_MAGIC,
		.major = WIRE_PROTOCOL_MAJOR,
		.minor = WIRE_PROTOCOL_MINOR,
		.byte_order = WIRE_BYTE_ORDER,
		.spec_version = WIRE_SPEC_VERSION,
		.capabilities = shm ? WIRE_CAPABILITY_SHARED_MEMORY
				: session_may_resume(session) ? WIRE_CAPABILITY_RESUME : 0,
		.process = (uint32_t)getpid(),
	};
	int rc;

	memcpy(hello.secret, file->secret, sizeof(hello.secret));
	strncpy(hello.program, program_invocation_short_name, sizeof(hello.program) - 1);
	if (shm) {
		rc = transport_write_descriptor(&session->transport, &hello, sizeof(hello), descriptor);
		close(descriptor);
	} else {
		rc = transport_write_all(&session->transport, &hello, sizeof(hello));
	}
	explicit_bzero(&hello, sizeof(hello));
	if (rc)
		return rc;
	rc = transport_read_all(&session->transport, reply, sizeof(*reply), HELLO_TIMEOUT_MS);
	if (rc)
		return rc;
	if (reply->magic != WIRE_HELLO_MAGIC || reply->text_bytes > WIRE_HELLO_TEXT_BYTES ||
	    reply->device_count > WIRE_DEVICES)
		return -EPROTO;
	rc = transport_read_all(&session->transport, text, reply->text_bytes, HELLO_TIMEOUT_MS);
	text[rc ? 0 : reply->text_bytes] = 0;
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
	struct client *client = &farbus_client;

	client->devices = calloc(count ? count : 1, sizeof(*client->devices));
	if (!client->devices)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		struct client_device *device = &client->devices[i];
		unsigned domain = 0, bus = 0, number = 0;
		int rc = transport_read_all(&session->transport, &device->snapshot,
					    sizeof(device->snapshot), HELLO_TIMEOUT_MS);

		if (rc)
			return rc;
		device->server_ordinal = i;
		device->snapshot.name[sizeof(device->snapshot.name) - 1] = 0;
		device->snapshot.pci_bus_id[sizeof(device->snapshot.pci_bus_id) - 1] = 0;
		if (sscanf(device->snapshot.pci_bus_id, "%x:%x:%x", &domain, &bus, &number) != 3)
			domain = bus = number = 0;
		device->pci[0] = (int)domain;
		device->pci[1] = (int)bus;
		device->pci[2] = (int)number;
	}
	client->device_count = (int)count;
	return 0;
}

static bool uuid_matches(const uint8_t uuid[16], const char *text)
{
	char full[48];

	snprintf(full, sizeof(full),
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 uuid[0], uuid[1], uuid[2], uuid[3], uuid[4], uuid[5], uuid[6], uuid[7], uuid[8],
		 uuid[9], uuid[10], uuid[11], uuid[12], uuid[13], uuid[14], uuid[15]);
	return strncasecmp(full, text, strlen(text)) == 0;
}

/* Which device an item of CUDA_VISIBLE_DEVICES names, or -1. */
static int visible_device(const struct client *client, const char *item)
{
	char *end;
	long ordinal;

	if (strncmp(item, "GPU-", 4) == 0) {
		for (int i = 0; i < client->device_count; i++)
			if (uuid_matches(client->devices[i].snapshot.uuid, item))
				return i;
		return -1;
	}
	ordinal = strtol(item, &end, 10);
	if (end == item || *end || ordinal < 0 || ordinal >= client->device_count)
		return -1;
	return (int)ordinal;
}

/* CUDA_VISIBLE_DEVICES selects and orders, up to the first item that names no
 * device or one that was named before (CUDA's rule). */
static int session_visible(struct client *client)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	struct client_device *chosen;
	char *copy, *save = NULL;
	int count = 0;

	if (!visible)
		return 0;
	copy = strdup(visible);
	chosen = calloc((size_t)client->device_count + 1, sizeof(*chosen));
	if (!copy || !chosen) {
		free(copy);
		free(chosen);
		return -ENOMEM;
	}
	for (char *item = strtok_r(copy, ", ", &save); item; item = strtok_r(NULL, ", ", &save)) {
		int index = visible_device(client, item);
		bool twice = false;

		for (int i = 0; i < count; i++)
			twice = twice || chosen[i].server_ordinal == (uint32_t)index;
		if (index < 0 || twice)
			break;
		chosen[count++] = client->devices[index];
	}
	free(copy);
	free(client->devices);
	client->devices = chosen;
	client->device_count = count;
	return 0;
}

static CUresult session_fail_open(struct client_session *session, int rc)
{
	transport_release(&session->transport);
	if (rc == -ETIMEDOUT)
		client_message("%s does not answer; is the agent of that node running?",
			       session->peer);
	else
		client_message("connect to %s: %s; the lease may have ended", session->peer,
			       strerror(-rc));
	return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

int client_session_open(struct client_session *session)
{
	struct client *client = &farbus_client;
	const char *path = getenv("FARBUS_SESSION");
	char text[WIRE_HELLO_TEXT_BYTES + 1];
	struct wire_hello_reply reply;
	struct session_file file = { .has_secret = false };
	enum choice choice = session_choice();
	struct shm *shm = NULL;
	int rc, memory = -1;

	session->transport.descriptor = -1;
	if (choice == CHOICE_UNKNOWN) {
		client_message("FARBUS_TRANSPORT is \"%s\": set it to auto, shm, unix or tcp",
			       getenv("FARBUS_TRANSPORT"));
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!path) {
		client_message("no remote GPU: FARBUS_SESSION is not set; "
			       "start the program with farbus run");
		return CUDA_ERROR_NO_DEVICE;
	}
	rc = session_file_load(&file, path);
	if (!rc)
		rc = session_file_parse(&file, path);
	if (rc)
		return rc == -EPERM ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_NO_DEVICE;
	rc = session_connect(session, &file, choice);
	/* Without shared memory the session goes on over the socket. */
	if (!rc && choice <= CHOICE_SHM && !client->management &&
	    strcmp(session->transport.ops->name, "unix") == 0)
		(void)transport_shm_make(&shm, &memory);
	if (!rc) {
		session_raise_descriptor(session);
		rc = session_hello(session, &file, shm, memory, &reply, text);
	} else if (choice == CHOICE_SHM || choice == CHOICE_UNIX) {
		client_message("FARBUS_TRANSPORT asks for a server on this machine; "
			       "no supervisor of this lease listens here");
	}
	if (rc) {
		explicit_bzero(&file, sizeof(file));
		transport_shm_drop(shm);
		return session_fail_open(session, rc);
	}
	if (reply.status != WIRE_HELLO_OK) {
		explicit_bzero(&file, sizeof(file));
		transport_shm_drop(shm);
		transport_release(&session->transport);
		return session_refused(session, &reply, text);
	}
	memcpy(session->operations, reply.operations, sizeof(session->operations));
	rc = session_devices(session, reply.device_count);
	if (!rc && (reply.capabilities & WIRE_CAPABILITY_RESUME))
		rc = client_resume_begin(session, file.address, file.port, file.secret, reply.session);
	explicit_bzero(&file, sizeof(file));
	if (shm && (reply.capabilities & WIRE_CAPABILITY_SHARED_MEMORY))
		transport_shm_switch(&session->transport, shm, false);
	else
		transport_shm_drop(shm);
	if (!rc && choice == CHOICE_SHM && !client->management && !session->transport.shm) {
		client_message("FARBUS_TRANSPORT asks for shared memory, which this server does not give");
		rc = -EPROTONOSUPPORT;
	}
	if (!rc && !client->management)
		rc = session_visible(client);
	if (!rc)
		rc = inbox_init(&session->inbox, &session->transport);
	if (!rc)
		rc = outbox_init(&session->outbox, &session->transport);
	if (rc)
		return session_fail_open(session, rc);
	client->driver_version = reply.driver_version < CLIENT_DRIVER_VERSION
					 ? reply.driver_version
					 : CLIENT_DRIVER_VERSION;
	return CUDA_SUCCESS;
}
