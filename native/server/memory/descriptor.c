/* Memory and pools that other processes of the lease have by a descriptor.
 *
 * The driver's descriptor is one of this node, and the program is elsewhere: it gets another one, with a token
 * (wire/descriptor.h).  The driver's is kept by the supervisor, which hands it to the server of whoever
 * shows the token: servers do not know each other.  It is asked by messages over a socket of its own
 * (remoting/descriptors.py), one at a time, and not waited for without end. */
#include "../ground/lead.h"
#include "../ground/named.h"
#include "../quota/objects.h"
#include "../quota/quota.h"
#include "descriptor.h"
#include "share.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../transport/sockets/socket.h"
#include "../../wire/descriptor.h"

/* The supervisor answers at once, but for when it starts a server. */
#define EXCHANGE_TIMEOUT_MS 10000
/* What one session may have exported at a time: a descriptor of the supervisor's each, of which it has some thousands
 * (remoting/descriptors.py).  Programs have two for each. */
#define EXPORTS_LIMIT 1024u

enum exchange_verb { EXCHANGE_KEEP = 1, EXCHANGE_FIND = 2, EXCHANGE_DROP = 3 };

/* Either way, and with KEEP and the answer to FIND a descriptor; remoting/descriptors.py has the same layout. */
struct exchange_message {
	uint32_t verb;
	uint32_t number;		/* the answer has the question's */
	uint32_t kind;			/* enum wire_descriptor_kind */
	uint32_t refusal;		/* enum wire_descriptor_refusal */
	uint64_t token[4];
};
_Static_assert(sizeof(struct exchange_message) == 48, "layout of remoting/descriptors.py");

struct server_export {
	struct server_export *next;
	uint64_t token[4];
	uint32_t kind;
	struct charge *charge;		/* of the memory that it keeps, or NULL */
};

bool server_descriptor_op(unsigned op)
{
	return op == WIRE_OP_DESCRIPTOR_EXPORT || op == WIRE_OP_DESCRIPTOR_IMPORT || op == WIRE_OP_DESCRIPTOR_DROP;
}

/* ---- asking the supervisor ---- */

/* 0, or -errno; *descriptor: what came with it, or -1.  -EPROTO: it is no message of ours; what came with it is closed. */
static int exchange_receive(int socket, struct exchange_message *message, int *descriptor)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec vector = { .iov_base = message, .iov_len = sizeof(*message) };
	struct msghdr received = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t got = recvmsg(socket, &received, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *header;
	bool several;

	*descriptor = -1;
	if (got <= 0)
		return got ? -errno : -EPIPE;
	header = CMSG_FIRSTHDR(&received);
	several = header && header->cmsg_len > CMSG_LEN(sizeof(int));
	*descriptor = transport_descriptor_of(&received);
	/* One that is cut off alone had no number left here. */
	several = several || (*descriptor >= 0 && received.msg_flags & MSG_CTRUNC);
	if (got == (ssize_t)sizeof(*message) && !(received.msg_flags & MSG_TRUNC) && !several)
		return 0;
	if (*descriptor >= 0)
		close(*descriptor);
	*descriptor = -1;
	return -EPROTO;
}

static int exchange_send(int socket, const struct exchange_message *message, int descriptor)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {
		.header = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS },
	};
	struct iovec vector = { .iov_base = (void *)message, .iov_len = sizeof(*message) };
	struct msghdr sent = { .msg_iov = &vector, .msg_iovlen = 1 };

	if (descriptor >= 0) {
		memcpy(CMSG_DATA(&control.header), &descriptor, sizeof(int));
		sent.msg_control = &control;
		sent.msg_controllen = sizeof(control);
	}
	return sendmsg(socket, &sent, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof(*message) ? 0 : -errno;
}

/* An answer that came too late for who had asked: nobody has what it gives. */
static void exchange_late(struct server *server, struct exchange_message *answer, int received)
{
	if (received >= 0)
		close(received);
	if (answer->verb != EXCHANGE_KEEP || answer->refusal != WIRE_DESCRIPTOR_GRANTED)
		return;
	answer->verb = EXCHANGE_DROP;
	(void)exchange_send(server->exchange, answer, -1);
}

/* Ask, sending a descriptor or -1, and wait for the answer: it replaces the message, and what came with it is
 * *received, or -1.  Where there is none in time, the message says so.  A supervisor that has not answered the last
 * question is asked nothing before it does, so that its answers are never more than it can send at once: 0, or -EAGAIN
 * where it was not asked for that, which who is not patient does not wait for. */
static int exchange_ask(struct server *server, struct exchange_message *message, int sent, int *received, bool patient)
{
	const uint64_t end = transport_now_ns() + EXCHANGE_TIMEOUT_MS * 1000000ull;
	struct pollfd waited = { .fd = server->exchange, .events = POLLIN };
	struct exchange_message answer;
	bool asked = false;
	int rc;

	message->refusal = WIRE_DESCRIPTOR_SILENT;
	pthread_mutex_lock(&server->exchange_lock);
	message->number = ++server->exchange_number;
	for (;;) {
		rc = exchange_receive(server->exchange, &answer, received);
		if (!rc) {
			server->exchange_silent = false;
			if (asked && answer.number == message->number) {
				*message = answer;
				break;
			}
			exchange_late(server, &answer, *received);
			*received = -1;
			continue;
		}
		if (rc == -EPROTO)
			message->refusal = WIRE_DESCRIPTOR_GARBLED;
		if (rc != -EAGAIN && rc != -EINTR)
			break;
		if (!asked && !server->exchange_silent) {
			rc = exchange_send(server->exchange, message, sent);
			if (rc)
				break;
			asked = true;
			continue;
		}
		if ((!asked && !patient) || poll(&waited, 1, transport_left_ms(end)) == 0) {
			server->exchange_silent = true;
			break;
		}
	}
	pthread_mutex_unlock(&server->exchange_lock);
	return !asked && rc == -EAGAIN ? -EAGAIN : 0;
}

/* ---- what this session has exported ---- */

/* With the lock. */
static struct server_export **export_find(struct server *server, const uint64_t token[4])
{
	struct server_export **link = &server->exports;

	while (*link && memcmp((*link)->token, token, sizeof((*link)->token)) != 0)
		link = &(*link)->next;
	return link;
}

/* Room for one more; NULL: the session has as many as it may, or memory is short. */
static struct server_export *export_make(struct server *server, uint32_t kind)
{
	struct server_export *export = calloc(1, sizeof(*export));
	bool room;

	pthread_mutex_lock(&server->exports_lock);
	room = export && server->export_count < EXPORTS_LIMIT;
	server->export_count += room;
	pthread_mutex_unlock(&server->exports_lock);
	if (!room) {
		free(export);
		return NULL;
	}
	export->kind = kind;
	return export;
}

/* In no list. */
static void export_free(struct server *server, struct server_export *export)
{
	pthread_mutex_lock(&server->exports_lock);
	server->export_count--;
	pthread_mutex_unlock(&server->exports_lock);
	server_quota_let_go(export->charge);
	free(export);
}

/* Have the driver make its descriptor. */
static CUresult export_ask(struct server_call *call, const struct wire_descriptor_export *request,
			   struct server_export *export, int *descriptor)
{
	const enum server_type type = request->kind == WIRE_DESCRIPTOR_POOL ? SERVER_CUmemoryPool
									     : SERVER_CUmemGenericAllocationHandle;
	const struct server_driver *driver = call->driver;
	uint64_t real;
	CUresult result;

	if (!server_named(call, type, request->object, &real, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	if (request->kind == WIRE_DESCRIPTOR_POOL)
		return driver->cuMemPoolExportToShareableHandle
			       ? driver->cuMemPoolExportToShareableHandle(descriptor, (CUmemoryPool)(uintptr_t)real,
									  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
									  request->flags)
			       : CUDA_ERROR_NOT_SUPPORTED;
	if (!driver->cuMemExportToShareableHandle)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = driver->cuMemExportToShareableHandle(descriptor, real, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
						      request->flags);
	/* The supervisor's descriptor keeps the memory: it counts until that is closed. */
	if (result == CUDA_SUCCESS)
		export->charge = server_quota_hold(real);
	return result;
}

CUresult serve_descriptor_export(struct server_call *call)
{
	const struct wire_descriptor_export *request = call->request;
	struct wire_descriptor_export_reply *reply = call->reply;
	struct exchange_message message = { .verb = EXCHANGE_KEEP, .kind = request->kind };
	struct server *server = call->server;
	struct server_export *export;
	int descriptor = -1, none;
	CUresult result;

	if (server->exchange <= 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (request->kind != WIRE_DESCRIPTOR_MEMORY && request->kind != WIRE_DESCRIPTOR_POOL)
		return CUDA_ERROR_INVALID_VALUE;
	export = export_make(server, request->kind);
	if (!export) {
		reply->refusal = WIRE_DESCRIPTOR_FULL;
		return CUDA_SUCCESS;
	}
	result = export_ask(call, request, export, &descriptor);
	if (result != CUDA_SUCCESS) {
		export_free(server, export);
		return result;
	}
	server_pass(call);
	exchange_ask(server, &message, descriptor, &none, true);
	close(descriptor);
	if (none >= 0)
		close(none);
	reply->refusal = message.refusal;
	if (message.refusal != WIRE_DESCRIPTOR_GRANTED) {
		export_free(server, export);
		return CUDA_SUCCESS;
	}
	memcpy(export->token, message.token, sizeof(export->token));
	memcpy(reply->token, message.token, sizeof(reply->token));
	pthread_mutex_lock(&server->exports_lock);
	export->next = server->exports;
	server->exports = export;
	pthread_mutex_unlock(&server->exports_lock);
	return CUDA_SUCCESS;
}

CUresult serve_descriptor_drop(struct server_call *call)
{
	const struct wire_descriptor_drop *request = call->request;
	struct exchange_message message = { .verb = EXCHANGE_DROP };
	struct server *server = call->server;
	struct server_export **link, *export;
	int none, rc;

	pthread_mutex_lock(&server->exports_lock);
	link = export_find(server, request->token);
	export = *link;
	if (export)
		*link = export->next;
	pthread_mutex_unlock(&server->exports_lock);
	if (!export)
		return CUDA_ERROR_INVALID_VALUE;
	message.kind = export->kind;
	memcpy(message.token, export->token, sizeof(message.token));
	server_pass(call);
	rc = exchange_ask(server, &message, -1, &none, false);
	if (none >= 0)
		close(none);
	if (!rc) {
		export_free(server, export);
		return CUDA_SUCCESS;
	}
	/* The client asks again. */
	pthread_mutex_lock(&server->exports_lock);
	export->next = server->exports;
	server->exports = export;
	pthread_mutex_unlock(&server->exports_lock);
	return CUDA_ERROR_TIMEOUT;
}

/* ---- what others have exported ---- */

static CUresult import_driver(struct server_call *call, uint32_t kind, int descriptor, uint64_t *real)
{
	const struct server_driver *driver = call->driver;
	void *handle = (void *)(intptr_t)descriptor;
	CUmemGenericAllocationHandle memory;
	CUmemoryPool pool;
	CUresult result;

	if (kind == WIRE_DESCRIPTOR_POOL) {
		result = driver->cuMemPoolImportFromShareableHandle
				 ? driver->cuMemPoolImportFromShareableHandle(
					   &pool, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
				 : CUDA_ERROR_NOT_SUPPORTED;
		if (result == CUDA_SUCCESS)
			*real = (uint64_t)(uintptr_t)pool;
		return result;
	}
	result = driver->cuMemImportFromShareableHandle
			 ? driver->cuMemImportFromShareableHandle(&memory, handle,
								  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
			 : CUDA_ERROR_NOT_SUPPORTED;
	if (result == CUDA_SUCCESS)
		*real = memory;
	return result;
}

static void import_undo(struct server_call *call, uint32_t kind, uint64_t real)
{
	if (kind == WIRE_DESCRIPTOR_POOL)
		call->driver->cuMemPoolDestroy((CUmemoryPool)(uintptr_t)real);
	else
		call->driver->cuMemRelease(real);
}

CUresult serve_descriptor_import(struct server_call *call)
{
	const struct wire_descriptor_import *request = call->request;
	struct wire_descriptor_import_reply *reply = call->reply;
	struct exchange_message message = { .verb = EXCHANGE_FIND, .kind = request->kind };
	struct server *server = call->server;
	struct server_export *own;
	struct charge *charge;
	int descriptor;
	uint64_t real;
	CUresult result;

	if (server->exchange <= 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (request->kind != WIRE_DESCRIPTOR_MEMORY && request->kind != WIRE_DESCRIPTOR_POOL)
		return CUDA_ERROR_INVALID_VALUE;
	/* Of this session's own memory one more handle is nothing new, but keeps it. */
	pthread_mutex_lock(&server->exports_lock);
	own = *export_find(server, request->token);
	charge = own ? server_quota_hold_again(own->charge) : NULL;
	pthread_mutex_unlock(&server->exports_lock);
	memcpy(message.token, request->token, sizeof(message.token));
	server_pass(call);
	exchange_ask(server, &message, -1, &descriptor, true);
	reply->refusal = message.refusal;
	if (message.refusal == WIRE_DESCRIPTOR_GRANTED && descriptor < 0)
		reply->refusal = WIRE_DESCRIPTOR_FULL;	/* this process has no number left for it */
	if (reply->refusal != WIRE_DESCRIPTOR_GRANTED) {
		server_quota_let_go(charge);
		return CUDA_SUCCESS;
	}
	result = import_driver(call, request->kind, descriptor, &real);
	/* The driver has taken what it needs of it. */
	close(descriptor);
	if (result != CUDA_SUCCESS) {
		server_quota_let_go(charge);
		return result;
	}
	if (request->kind == WIRE_DESCRIPTOR_MEMORY)
		server_quota_share(charge, real);
	result = server_name(call,
			     request->kind == WIRE_DESCRIPTOR_POOL ? SERVER_CUmemoryPool
								   : SERVER_CUmemGenericAllocationHandle,
			     real, 0, true, &reply->object);
	if (result != CUDA_SUCCESS)
		import_undo(call, request->kind, real);
	return result;
}

CUresult serve_pool_pointer_import(struct server_call *call)
{
	const struct wire_pool_pointer_import *request = call->request;
	struct wire_pool_pointer_import_reply *reply = call->reply;
	const struct server_driver *driver = call->driver;
	CUmemoryPool pool = server_object(call, SERVER_CUmemoryPool, request->pool);
	CUmemPoolPtrExportData data;
	CUdeviceptr address;
	size_t bytes = 0;
	CUresult result;

	_Static_assert(sizeof(data) == sizeof(request->data), "wire layout");
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!driver->cuMemPoolImportPointer || !driver->cuPointerGetAttribute)
		return CUDA_ERROR_NOT_SUPPORTED;
	memcpy(&data, request->data, sizeof(data));
	result = driver->cuMemPoolImportPointer(&address, pool, &data);
	if (result != CUDA_SUCCESS)
		return result;
	/* Unlike cuMemGetAddressRange this asks for no context, as importing does not. */
	result = driver->cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
	if (result != CUDA_SUCCESS) {
		driver->cuMemFree_v2(address);
		return result;
	}
	reply->address = address;
	reply->bytes = bytes;
	return CUDA_SUCCESS;
}

CUresult serve_pointer_attribute(struct server_call *call)
{
	const struct wire_pointer_attribute *request = call->request;
	struct wire_pointer_attribute_reply *reply = call->reply;
	uint64_t wide = 0;
	CUresult result;

	if (!call->driver->cuPointerGetAttribute)
		return CUDA_ERROR_NOT_SUPPORTED;
	/* No other may be asked: some are addresses of this process's, or wider. */
	if (request->attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL &&
	    request->attribute != CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
	    request->attribute != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
		return CUDA_ERROR_INVALID_VALUE;
	result = call->driver->cuPointerGetAttribute(&wide, (CUpointer_attribute)request->attribute, request->address);
	if (result == CUDA_SUCCESS)
		reply->value = wide;
	return result;
}
