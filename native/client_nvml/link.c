/* nvmlInit, nvmlShutdown, and the connection to the server. */
#include "nvml.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../client/ground/message.h"
#include "../client/sessions/session.h"
#include "../transport/ground/clofork.h"

struct nvml nvml = {
	.link = PTHREAD_MUTEX_INITIALIZER,
	.lock = PTHREAD_MUTEX_INITIALIZER,
};

/* What native/client/sessions/session.c opens a session into: this library's own, which never gets
 * as far as CUDA. */
struct client farbus_client = {
	.sessions = { [0 ... CLIENT_SERVERS - 1] = { .transport = { .descriptor = -1 } } },
	.management = true,
};

/* ---- fork ---- */

static void fork_prepare(void)
{
	pthread_mutex_lock(&nvml.lock);
	clofork_prepare();
}

static void fork_parent(void)
{
	clofork_parent();
	pthread_mutex_unlock(&nvml.lock);
}

/* The child knows what the parent knew, and connects by itself when it asks. */
static void fork_child(void)
{
	clofork_child();
	pthread_mutex_unlock(&nvml.lock);
	/* Another thread may have held it: there is none here. */
	pthread_mutex_init(&nvml.link, NULL);
	for (unsigned i = 0; i < farbus_client.session_count; i++)
		farbus_client.sessions[i].transport.descriptor = -1;
	nvml.stale = nvml.connected;
	nvml.connected = false;
	nvml.lost = 0;
}

static void fork_watch(void)
{
	pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/* Take the link, such that a fork from now on does not leave it locked in the child.  No
 * cancellation either: what is done under it has an end. */
static int link_lock(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_once(&once, fork_watch);
	pthread_mutex_lock(&nvml.link);
	return cancel;
}

static void link_unlock(int cancel)
{
	pthread_mutex_unlock(&nvml.link);
	pthread_setcancelstate(cancel, &cancel);
}

/* ---- the connection; nvml.link is held ---- */

static void link_close(void)
{
	for (unsigned i = 0; (nvml.connected || nvml.stale) && i < farbus_client.session_count; i++) {
		struct client_session *session = &farbus_client.sessions[i];

		transport_release(&session->transport);
		inbox_release(&session->inbox);
		outbox_release(&session->outbox);
	}
	free(farbus_client.devices);
	farbus_client.devices = NULL;
	farbus_client.device_count = 0;
	nvml.connected = false;
	nvml.stale = false;
}

static nvmlReturn_t link_open(void)
{
	link_close();
	switch (client_sessions_open(&farbus_client)) {
	case CUDA_SUCCESS:
		break;
	case CUDA_ERROR_NO_DEVICE:
		return NVML_ERROR_DRIVER_NOT_LOADED;
	case CUDA_ERROR_NOT_PERMITTED:
		return NVML_ERROR_NO_PERMISSION;
	case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	case CUDA_ERROR_DEVICE_UNAVAILABLE:
		return NVML_ERROR_GPU_IS_LOST;
	default:
		return NVML_ERROR_UNKNOWN;
	}
	nvml.connected = true;
	nvml.sequence = 0;
	nvml.lost = 0;
	for (unsigned i = 0; i < farbus_client.session_count; i++)
		nvml.lost |= (uint32_t)atomic_load(&farbus_client.sessions[i].dead) << i;
	return NVML_SUCCESS;
}

static bool server_is_lost(unsigned server)
{
	return !nvml.connected || nvml.lost >> server & 1;
}

/* Read exactly, until `end` at the latest. */
static int link_read(struct client_session *session, void *data, size_t bytes, uint64_t end)
{
	int left = transport_left_ms(end);

	return left ? transport_read_all(&session->transport, data, bytes, left) : -ETIMEDOUT;
}

static int link_send(struct client_session *session, uint32_t ordinal,
		     const struct nvml_question *question)
{
	struct wire_management request = {
		.query = (uint32_t)question->query,
		.device = ordinal,
	};
	struct wire_header header = {
		.length = (uint32_t)(sizeof(request) + question->tail_bytes),
		.opcode = WIRE_OP_MANAGEMENT,
		.sequence = ++nvml.sequence,
	};
	struct iovec vector[3] = {
		{ .iov_base = &header, .iov_len = sizeof(header) },
		{ .iov_base = &request, .iov_len = sizeof(request) },
		{ .iov_base = (void *)question->tail, .iov_len = question->tail_bytes },
	};

	memcpy(request.arguments, question->arguments, sizeof(request.arguments));
	return session->transport.ops->write(&session->transport, vector,
					     question->tail_bytes ? 3 : 2);
}

/* 0, or -errno when the connection is of no use any more. */
static int link_receive(struct client_session *session, struct wire_management_reply *reply,
			struct nvml_answer *answer)
{
	uint64_t end = transport_now_ns() + NVML_ANSWER_TIMEOUT_MS * 1000000ull;
	struct wire_header header;
	int rc = link_read(session, &header, sizeof(header), end);

	if (rc)
		return rc;
	/* Nothing else is asked here, and nothing comes unasked for it. */
	if (header.opcode != (WIRE_OP_MANAGEMENT | WIRE_REPLY) || header.sequence != nvml.sequence)
		return -EPROTO;
	if (header.argument) {
		/* A CUresult, and no reply: the server is out of memory. */
		reply->status = NVML_ERROR_MEMORY;
		return header.length ? -EPROTO : 0;
	}
	if (header.length < sizeof(*reply) || header.length - sizeof(*reply) > NVML_TAIL_BYTES)
		return -EPROTO;
	rc = link_read(session, reply, sizeof(*reply), end);
	if (rc)
		return rc;
	memcpy(answer->values, reply->values, sizeof(answer->values));
	answer->tail_bytes = header.length - sizeof(*reply);
	return answer->tail_bytes ? link_read(session, answer->tail, answer->tail_bytes, end) : 0;
}

static nvmlReturn_t link_ask(const struct nvmlDevice_st *device,
			     const struct nvml_question *question, struct nvml_answer *answer)
{
	struct client_session *session = &farbus_client.sessions[device->server];
	struct wire_management_reply reply = { 0 };
	int rc;

	answer->tail_bytes = 0;
	memset(answer->values, 0, sizeof(answer->values));
	if (!client_session_has(session, WIRE_OP_MANAGEMENT))
		return NVML_ERROR_NOT_SUPPORTED;
	rc = link_send(session, device->ordinal, question);
	if (!rc)
		rc = link_receive(session, &reply, answer);
	if (!rc)
		return (nvmlReturn_t)reply.status;
	client_message("the connection to the GPU at %s is lost for NVML: %s", session->peer,
		       strerror(-rc));
	nvml.lost |= 1u << device->server;
	/* The others go on. */
	session->transport.ops->shutdown(&session->transport);
	if (farbus_client.session_count == 1)
		link_close();
	return rc == -ETIMEDOUT ? NVML_ERROR_TIMEOUT : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t nvml_ask(nvmlDevice_t handle, const struct nvml_question *question,
		      struct nvml_answer *answer)
{
	struct nvmlDevice_st device;
	nvmlReturn_t result = nvml_device(handle, &device);
	int cancel;

	if (result)
		return result;
	cancel = link_lock();
	/* NVML may have been shut down before this thread's turn came. */
	result = nvml_up();
	if (!result && nvml.lost >> device.server & 1)
		result = NVML_ERROR_GPU_IS_LOST;
	if (!result && !nvml.connected) {
		result = link_open();
		if (result)
			nvml.lost = UINT32_MAX;
		else if (server_is_lost(device.server))
			result = NVML_ERROR_GPU_IS_LOST;
	}
	if (!result)
		result = link_ask(&device, question, answer);
	link_unlock(cancel);
	return result;
}

/* ---- up and down ---- */

static int device_order(const void *left, const void *right)
{
	const struct nvmlDevice_st *a = left, *b = right;

	if (a->server != b->server)
		return a->server < b->server ? -1 : 1;
	if (a->domain != b->domain)
		return a->domain < b->domain ? -1 : 1;
	if (a->bus != b->bus)
		return a->bus < b->bus ? -1 : 1;
	if (a->slot != b->slot)
		return a->slot < b->slot ? -1 : 1;
	return a->ordinal < b->ordinal ? -1 : 1;
}

static void device_take(struct nvmlDevice_st *device, const struct client_device *from)
{
	const struct wire_device *snapshot = &from->snapshot;

	*device = (struct nvmlDevice_st){
		.server = from->session->index,
		.ordinal = from->server_ordinal,
		.total_bytes = snapshot->total_bytes,
		.domain = (unsigned)from->pci[0],
		.bus = (unsigned)from->pci[1],
		.slot = (unsigned)from->pci[2],
		.capability = {
			snapshot->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR],
			snapshot->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR],
		},
	};
	memcpy(device->name, snapshot->name, sizeof(device->name));
	memcpy(device->uuid, snapshot->uuid, sizeof(device->uuid));
}

/* What is asked once: 0 or the status of a connection that is lost. */
static nvmlReturn_t version_take(enum nvml_query query, char text[NVML_VERSION_TEXT_BYTES])
{
	const struct nvml_question question = { .query = query };
	struct nvml_answer answer;
	nvmlReturn_t result = link_ask(&nvml.devices[0], &question, &answer);

	text[0] = 0;
	if (result)
		return server_is_lost(nvml.devices[0].server) ? result : NVML_SUCCESS;
	if (answer.tail_bytes >= NVML_VERSION_TEXT_BYTES)
		answer.tail_bytes = NVML_VERSION_TEXT_BYTES - 1;
	memcpy(text, answer.tail, answer.tail_bytes);
	text[answer.tail_bytes] = 0;
	return NVML_SUCCESS;
}

static nvmlReturn_t pci_take(struct nvmlDevice_st *device)
{
	const struct nvml_question question = { .query = QUERY_nvmlDeviceGetPciInfo_v3 };
	struct nvml_answer answer;
	nvmlReturn_t result = link_ask(device, &question, &answer);

	if (result)
		return server_is_lost(device->server) ? result : NVML_SUCCESS;
	device->pci_device = (unsigned)answer.values[0];
	device->pci_subsystem = (unsigned)answer.values[1];
	return NVML_SUCCESS;
}

/* Connect, learn what does not change, let go; nobody uses NVML yet, so that nobody else
 * looks at what is filled in. */
static nvmlReturn_t nvml_start(void)
{
	nvmlReturn_t result;
	unsigned count;

	result = link_open();
	if (result)
		return result;
	count = (unsigned)farbus_client.device_count;
	nvml.cuda_version = farbus_client.driver_version;
	for (unsigned i = 0; i < count; i++)
		device_take(&nvml.devices[i], &farbus_client.devices[i]);
	qsort(nvml.devices, count, sizeof(nvml.devices[0]), device_order);
	for (unsigned i = 0; i < count && !result; i++)
		result = pci_take(&nvml.devices[i]);
	/* They are asked of the first device, for a query has one. */
	if (!result && count)
		result = version_take(QUERY_nvmlSystemGetDriverVersion, nvml.driver_version);
	if (!result && count)
		result = version_take(QUERY_nvmlSystemGetNVMLVersion, nvml.library_version);
	nvml.count = count;
	link_close();
	return result;
}

NVML_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	nvmlReturn_t result = NVML_SUCCESS;
	int cancel = link_lock();

	/* Only holders of the link change the number of users. */
	if (!nvml.users)
		result = nvml_start();
	pthread_mutex_lock(&nvml.lock);
	if (!result)
		nvml.users++;
	pthread_mutex_unlock(&nvml.lock);
	link_unlock(cancel);
	return result;
}

NVML_EXPORT nvmlReturn_t nvmlInit(void)
{
	return nvmlInit_v2();
}

NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;	/* whether to fail without GPUs, and whether to attach them */
	return nvmlInit_v2();
}

NVML_EXPORT nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_SUCCESS;
	int cancel = link_lock();
	bool last;

	pthread_mutex_lock(&nvml.lock);
	if (nvml.users)
		nvml.users--;
	else
		result = NVML_ERROR_UNINITIALIZED;
	last = !nvml.users;
	pthread_mutex_unlock(&nvml.lock);
	if (last)
		link_close();
	link_unlock(cancel);
	return result;
}

/* The library is closed (dlclose), or the process ends: whoever has not called nvmlShutdown leaves no server behind.
 * Descriptors alone are closed, as OpenSSL may be over by now.  Where another thread still asks, the process ends. */
static void __attribute__((destructor)) nvml_unload(void)
{
	if (pthread_mutex_trylock(&nvml.link))
		return;
	for (unsigned i = 0; nvml.connected && i < farbus_client.session_count; i++)
		if (farbus_client.sessions[i].transport.descriptor >= 0)
			close(farbus_client.sessions[i].transport.descriptor);
	nvml.connected = false;
	pthread_mutex_unlock(&nvml.link);
}

nvmlReturn_t nvml_devices(unsigned *count)
{
	nvmlReturn_t result;

	/* What nvmlInit fills in is looked at only once it is up, and under the lock. */
	pthread_mutex_lock(&nvml.lock);
	result = nvml.users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
	*count = nvml.users ? nvml.count : 0;
	pthread_mutex_unlock(&nvml.lock);
	return result;
}

nvmlReturn_t nvml_up(void)
{
	unsigned count;

	return nvml_devices(&count);
}

nvmlReturn_t nvml_device(nvmlDevice_t handle, struct nvmlDevice_st *device)
{
	nvmlReturn_t result = NVML_ERROR_INVALID_ARGUMENT;

	pthread_mutex_lock(&nvml.lock);
	if (!nvml.users)
		result = NVML_ERROR_UNINITIALIZED;
	for (unsigned i = 0; nvml.users && i < nvml.count; i++) {
		if (handle == &nvml.devices[i]) {
			*device = nvml.devices[i];
			result = NVML_SUCCESS;
			break;
		}
	}
	pthread_mutex_unlock(&nvml.lock);
	return result;
}
