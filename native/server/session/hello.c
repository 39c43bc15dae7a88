/* The hello: who may come, and what both sides can. */
#include "../../transport/ground/crew.h"
#include "../../transport/rings/shm.h"
#include "../../transport/sockets/socket.h"
#include "../ground/frames.h"
#include "../libraries/images.h"
#include "driver.h"
#include "hello.h"
#include "resume.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../transport/rings/rdma.h"
#include "../../transport/sockets/tls.h"
#include "../../wire/proof.h"

/* The supervisor has seen the whole hello before it starts this process. */
#define HELLO_TIMEOUT_MS 10000
/* How long a refused client may take to read why and go. */
#define REFUSED_TIMEOUT_MS 1000

static int hello_refuse(struct server *server, enum wire_hello_status status, CUresult result,
			const char *text)
{
	struct wire_hello_reply reply = {
		.magic = WIRE_HELLO_MAGIC,
		.major = WIRE_PROTOCOL_MAJOR,
		.minor = WIRE_PROTOCOL_MINOR,
		.status = status,
		.spec_version = WIRE_SPEC_VERSION,
		.result = (int32_t)result,
		.text_bytes = (uint32_t)strnlen(text, WIRE_HELLO_TEXT_BYTES),
	};
	int rc = transport_write_all(&server->transport, &reply, sizeof(reply));

	return rc ? rc : transport_write_all(&server->transport, text, reply.text_bytes);
}

static int hello_accept(struct server *server, uint64_t session, uint64_t capabilities)
{
	struct wire_hello_reply reply = {
		.magic = WIRE_HELLO_MAGIC,
		.major = WIRE_PROTOCOL_MAJOR,
		.minor = WIRE_PROTOCOL_MINOR,
		.status = WIRE_HELLO_OK,
		.spec_version = WIRE_SPEC_VERSION,
		.capabilities = capabilities,
		.session = session,
		.device_count = (uint32_t)server->device_count,
	};
	struct wire_device device;
	int rc;

	server_driver_operations(server, reply.operations, sizeof(reply.operations));
	server->driver.cuDriverGetVersion(&reply.driver_version);
	rc = transport_write_all(&server->transport, &reply, sizeof(reply));
	for (int i = 0; !rc && i < server->device_count; i++) {
		server_driver_describe(server, server->devices[i], &device);
		rc = transport_write_all(&server->transport, &device, sizeof(device));
	}
	if (!rc && (capabilities & WIRE_CAPABILITY_RESUME))
		rc = server_resume_grant(server);
	return rc;
}

int server_fail(char *why, int bytes, int rc, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why, (size_t)bytes, format, arguments);
	va_end(arguments);
	return rc;
}

/* Let a refused client read why: to close with something unread would reset the connection. */
static void hello_drain(struct server *server)
{
	uint8_t dropped[4096];

	shutdown(server->transport.descriptor, SHUT_WR);
	for (int i = 0; i < 16 && server->transport.ops->wait(&server->transport, REFUSED_TIMEOUT_MS) == 0; i++)
		if (server->transport.ops->read(&server->transport, dropped, sizeof(dropped)) < 0)
			break;
}

/* Go on encrypted, and hear the rest of the hello. */
static int hello_encrypt(struct server *server, struct wire_hello *hello, const uint8_t *secret,
			 char *why, int bytes)
{
	uint8_t key[WIRE_DIGEST_BYTES];
	char cause[TLS_WHY_BYTES];
	struct wire_hello clear = *hello;
	int rc;

	wire_hello_key(hello, secret, key);
	rc = transport_tls_start(&server->transport, key, true, HELLO_TIMEOUT_MS, cause);
	explicit_bzero(key, sizeof(key));
	if (rc == -EPROTONOSUPPORT) {
		char text[WIRE_HELLO_TEXT_BYTES];

		snprintf(text, sizeof(text), "its node can't encrypt: %s", cause);
		hello_refuse(server, WIRE_HELLO_TLS, CUDA_SUCCESS, text);
		hello_drain(server);
	}
	if (rc)
		return server_fail(why, bytes, rc, "%s", cause);
	rc = transport_read_all(&server->transport, hello, sizeof(*hello), HELLO_TIMEOUT_MS);
	if (rc)
		return server_fail(why, bytes, rc, "read the client's hello: %s", strerror(-rc));
	clear.process = hello->process;
	memcpy(clear.program, hello->program, sizeof(clear.program));
	if (memcmp(&clear, hello, sizeof(clear)) != 0)
		return server_fail(why, bytes, -EPROTO, "the client says one hello in the clear and another encrypted");
	server->status->client_pid = hello->process;
	memcpy(server->status->program, hello->program, sizeof(server->status->program));
	return 0;
}

/* The program goes on over TCP and says nothing: only this node's log can tell its operator, who has turned RDMA on. */
static void say_without_rdma(const char *why)
{
	dprintf(STDERR_FILENO, "farbus remoting server: a session that could go by RDMA goes over TCP: %s\n", why);
}

int server_hello(struct server *server, const struct server_options *options, char *why, int bytes)
{
	struct wire_hello hello;
	char text[WIRE_HELLO_TEXT_BYTES];
	struct shm *shm = NULL;
	struct rdma *rdma = NULL;
	uint64_t granted;
	CUresult result;
	int rc, memory;

	rc = transport_read_descriptor(&server->transport, &hello, sizeof(hello), HELLO_TIMEOUT_MS,
				       &memory);
	if (rc)
		return server_fail(why, bytes, rc, "read the client's hello: %s", strerror(-rc));
	if (hello.magic != WIRE_HELLO_MAGIC || hello.major != WIRE_PROTOCOL_MAJOR ||
	    hello.byte_order != WIRE_BYTE_ORDER) {
		hello_refuse(server, WIRE_HELLO_VERSION, CUDA_SUCCESS, "");
		return server_fail(why, bytes, -EPROTO, "the client speaks protocol %u.%u, this server %u.%u",
			    hello.major, hello.minor, WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
	}
	if (memory >= 0 && !(hello.capabilities & WIRE_CAPABILITY_SHARED_MEMORY))
		close(memory);
	else if (memory >= 0)
		(void)transport_shm_take(&shm, &server->transport, memory);
	if (!wire_hello_proves(&hello, options->secret)) {
		hello_refuse(server, WIRE_HELLO_SECRET, CUDA_SUCCESS, "");
		return server_fail(why, bytes, -EACCES, "the client does not have this lease's secret");
	}
	if (shm)
		granted = WIRE_CAPABILITY_SHARED_MEMORY;
	else if (server_resume_may(server, options) && hello.capabilities & WIRE_CAPABILITY_RESUME)
		granted = hello.capabilities & (WIRE_CAPABILITY_RESUME | WIRE_CAPABILITY_WINDOWS | WIRE_CAPABILITY_PROMPT |
						WIRE_CAPABILITY_CONNECTIONS |
						(crew_has_processors() ? WIRE_CAPABILITY_THREADS : 0));
	else
		granted = 0;
	if (granted & WIRE_CAPABILITY_RESUME && hello.capabilities & WIRE_CAPABILITY_RDMA && options->rdma) {
		if (transport_rdma_make(&rdma, &server->transport, text))
			say_without_rdma(text);
		else
			granted |= WIRE_CAPABILITY_RDMA;
	}
	if (granted & WIRE_CAPABILITY_RESUME)
		server_resume_prepare(server, options, &hello, granted);
	if (options->image_directory && hello.capabilities & WIRE_CAPABILITY_IMAGES && wire_digest_is_fast())
		server->images = server_images_open(options->image_directory, options->image_bytes);
	if (server->images)
		granted |= WIRE_CAPABILITY_IMAGES;
	if (options->tls != !!(hello.capabilities & WIRE_CAPABILITY_TLS)) {
		hello_refuse(server, WIRE_HELLO_TLS, CUDA_SUCCESS, "");
		return server_fail(why, bytes, -EACCES, "the client %s TLS", options->tls ? "does not use" : "asks for");
	}
	rc = options->tls ? hello_encrypt(server, &hello, options->secret, why, bytes) : 0;
	explicit_bzero(options->secret, WIRE_SECRET_BYTES);
	if (rc)
		return rc;
	result = CUDA_SUCCESS;
	rc = options->prepared ? 0 : server_driver_start(server, options, text, sizeof(text), &result);
	if (rc) {
		hello_refuse(server, WIRE_HELLO_DRIVER, CUDA_ERROR_NO_DEVICE, text);
		return server_fail(why, bytes, rc, "%s", text);
	}
	if (result != CUDA_SUCCESS) {
		snprintf(text, sizeof(text), "the CUDA driver does not start (error %d)", (int)result);
		hello_refuse(server, WIRE_HELLO_DRIVER, result, text);
		return server_fail(why, bytes, -ENODEV, "%s", text);
	}
	rc = hello_accept(server, options->session, granted);
	if (rc)
		return server_fail(why, bytes, rc, "answer the client's hello: %s", strerror(-rc));
	if (shm)
		transport_shm_switch(&server->transport, shm, true);
	if (rdma) {
		rc = transport_rdma_start(&server->transport, rdma, true, HELLO_TIMEOUT_MS);
		if (rc)
			return server_fail(why, bytes, rc, "agree about RDMA: %s", strerror(-rc));
		if (!transport_is_rdma(&server->transport))
			say_without_rdma("the client's adapter, or the network between, carries none (UDP port 4791, or packets "
					 "of the adapters' size)");
	}
	server_status_carried(server, &server->transport);
	if (granted & WIRE_CAPABILITY_RESUME) {
		rc = server_resume_start(server);
		if (rc)
			return server_fail(why, bytes, rc, "prepare to be resumed: %s", strerror(-rc));
	}
	server->own_lane = hello.minor >= WIRE_LANE_OWN_MINOR;
	return 0;
}
