/* Memory and pools that processes of a lease share by a descriptor.
 *
 * The driver's descriptor stays on the GPU's node.  The program gets one of this machine, which it may duplicate,
 * pass on, inherit and close as it likes: one end of a socket, in which a message with a token lies for whoever
 * imports (wire/descriptor.h).  The other end is kept here, and hangs up when the last copy of the program's
 * is closed, in whichever process.  That is looked for when something is exported, imported, taken or
 * given back: no thread waits for it. */
#include "../addresses/exports.h"
#include "../addresses/place.h"
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../ground/guest.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "descriptor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../transport/ground/clofork.h"
#include "../../wire/descriptor.h"

CUresult client_descriptors_check(unsigned types)
{
	if (!(types & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return CUDA_SUCCESS;
	client_message("shareable handles that are no descriptors (%s) are not supported over remoting: programs of "
		       "one lease share memory by CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
		       types & CU_MEM_HANDLE_TYPE_FABRIC ? "CU_MEM_HANDLE_TYPE_FABRIC" : "Windows has them");
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* As for calls that travel as they are: whether a context is needed, the driver knows. */
static CUresult descriptor_enter(CUmemAllocationHandleType type)
{
	CUresult result = client_enter();

	if (result == CUDA_ERROR_INVALID_CONTEXT)
		result = CUDA_SUCCESS;
	if (result == CUDA_SUCCESS && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		result = client_descriptors_check((unsigned)type);
	if (result == CUDA_SUCCESS && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		client_descriptors_look();
	return result;
}

/* What an earlier call's error is, the program is told by another: what is made here, it gets. */
static CUresult descriptor_ask(const struct client_route *route, const struct client_request *request,
			       struct client_wait *wait)
{
	wait->result = CUDA_ERROR_DEVICE_UNAVAILABLE;
	/* An older server is named. */
	return client_session_has(route->session, request->op) ? client_call_own(route, request, wait)
							       : client_call_to(route, request, wait);
}

/* What the supervisor refused, and why. */
static CUresult descriptor_refused(const struct client_session *session, unsigned refusal)
{
	switch (refusal) {
	case WIRE_DESCRIPTOR_GRANTED:
		return CUDA_SUCCESS;
	case WIRE_DESCRIPTOR_UNKNOWN:
		client_message("the process that exported this descriptor has ended, or has seen its last copy closed: "
			       "over remoting it is imported while that lives");
		return CUDA_ERROR_INVALID_VALUE;
	case WIRE_DESCRIPTOR_FULL:
		client_message("%s keeps no more descriptors for this process or its lease: close some that are not "
			       "needed any more", session->peer);
		return CUDA_ERROR_OPERATING_SYSTEM;
	case WIRE_DESCRIPTOR_GARBLED:
		client_message("the supervisor at %s has answered what is no answer: it is of another version, and a new "
			       "lease gets one of this", session->peer);
		return CUDA_ERROR_OPERATING_SYSTEM;
	default:
		client_message("the supervisor at %s does not answer: its machine is overloaded, or it is stopped",
			       session->peer);
		return CUDA_ERROR_TIMEOUT;
	}
}

/* ---- exporting ---- */

/* Both ends, the program's first. */
static CUresult ends_make(struct client_export *export, int *end)
{
	struct clofork_section section;
	struct stat status;
	int ends[2], rc;

	clofork_begin(&section);
	rc = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends);
	if (!rc)
		clofork_note(ends[1]);
	clofork_end(&section);
	if (rc) {
		client_message("a descriptor for memory: %s; let this program have more descriptors (ulimit -n), of "
			       "which each takes two", strerror(errno));
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*end = ends[0];
	export->watch = client_raise_descriptor(ends[1]);
	if (fstat(export->watch, &status) == 0) {
		export->device = status.st_dev;
		export->inode = status.st_ino;
	}
	return CUDA_SUCCESS;
}

static CUresult export_ask(struct client_export *export, const struct wire_descriptor_export *fixed)
{
	const struct client_request request = { WIRE_OP_DESCRIPTOR_EXPORT, fixed, sizeof(*fixed), NULL, 0 };
	const struct client_route route = client_route_session(export->session);
	struct wire_descriptor_export_reply reply = { 0 };
	struct client_wait wait = { .reply = &reply, .reply_bytes = sizeof(reply) };
	CUresult result = descriptor_ask(&route, &request, &wait);

	if (result == CUDA_SUCCESS)
		result = descriptor_refused(export->session, reply.refusal);
	memcpy(export->token, reply.token, sizeof(export->token));
	return result;
}

/* Put the message where whoever has the program's end finds it. */
static bool message_put(const struct client_export *export, enum wire_descriptor_kind kind)
{
	struct wire_descriptor message = {
		.magic = WIRE_DESCRIPTOR_MAGIC,
		.version = WIRE_DESCRIPTOR_VERSION,
		.kind = kind,
	};
	ssize_t sent;
	int cancel;

	memcpy(message.lease, export->session->lease, sizeof(message.lease));
	memcpy(message.token, export->token, sizeof(message.token));
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	sent = send(export->watch, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL);
	pthread_setcancelstate(cancel, &cancel);
	return sent == (ssize_t)sizeof(message);
}

static CUresult descriptor_export(int *out, enum wire_descriptor_kind kind, const void *object,
				  CUmemAllocationHandleType type, unsigned long long flags)
{
	struct wire_descriptor_export fixed = { .flags = flags, .kind = kind };
	struct client_export *export;
	int end = -1;
	CUresult result = descriptor_enter(type);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	export = calloc(1, sizeof(*export));
	if (!export)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fixed.object = client_named_wire(object, &export->session);
	result = ends_make(export, &end);
	if (result != CUDA_SUCCESS) {
		free(export);
		return result;
	}
	result = export_ask(export, &fixed);
	if (result == CUDA_SUCCESS && !message_put(export, kind)) {
		client_export_drop(export->session, export->token);
		result = CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (result != CUDA_SUCCESS) {
		clofork_close(export->watch);
		close(end);
		free(export);
		return result;
	}
	client_export_add(export);
	*out = end;
	return CUDA_SUCCESS;
}

/* ---- importing ---- */

/* Is it one of ours?  Whatever else it is stays untouched: a message is looked at and left, where there is one, and
 * nothing is waited for. */
static bool message_look(int descriptor, enum wire_descriptor_kind kind, struct wire_descriptor *message)
{
	struct pollfd waited = { .fd = descriptor, .events = POLLIN };
	int domain = 0, type = 0, offset = 0, cancel;
	socklen_t bytes = sizeof(int);
	ssize_t got = -1;

	/* Where a socket counts what was looked at (SO_PEEK_OFF), or has an error to tell, a look would take that. */
	if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) || domain != AF_UNIX ||
	    getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &bytes) || type != SOCK_SEQPACKET ||
	    getsockopt(descriptor, SOL_SOCKET, SO_PEEK_OFF, &offset, &bytes) || offset != -1)
		return false;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	if (poll(&waited, 1, 0) == 1 && (waited.revents & (POLLIN | POLLERR)) == POLLIN)
		got = recv(descriptor, message, sizeof(*message), MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);
	pthread_setcancelstate(cancel, &cancel);
	return got == (ssize_t)sizeof(*message) && message->magic == WIRE_DESCRIPTOR_MAGIC &&
	       message->version == WIRE_DESCRIPTOR_VERSION && message->kind == kind;
}

static struct client_session *lease_find(const struct wire_descriptor *message)
{
	for (unsigned i = 0; i < farbus_client.session_count; i++)
		if (memcmp(farbus_client.sessions[i].lease, message->lease, sizeof(message->lease)) == 0)
			return &farbus_client.sessions[i];
	return NULL;
}

static CUresult descriptor_import(uint64_t *object, int descriptor, enum wire_descriptor_kind kind,
				  CUmemAllocationHandleType type)
{
	struct wire_descriptor_import fixed = { .kind = kind };
	const struct client_request request = { WIRE_OP_DESCRIPTOR_IMPORT, &fixed, sizeof(fixed), NULL, 0 };
	struct wire_descriptor_import_reply reply = { 0 };
	struct client_wait wait = { .reply = &reply, .reply_bytes = sizeof(reply) };
	struct client_session *session;
	struct wire_descriptor message;
	struct client_route route;
	CUresult result = descriptor_enter(type);

	if (result != CUDA_SUCCESS)
		return result;
	if (!message_look(descriptor, kind, &message))
		return CUDA_ERROR_INVALID_VALUE;
	session = lease_find(&message);
	if (!session) {
		client_message("descriptor %d is another lease's: programs of one lease alone share memory",
			       descriptor);
		return CUDA_ERROR_INVALID_VALUE;
	}
	memcpy(fixed.token, message.token, sizeof(fixed.token));
	route = client_route_session(session);
	result = descriptor_ask(&route, &request, &wait);
	if (result == CUDA_SUCCESS)
		result = descriptor_refused(session, reply.refusal);
	if (result == CUDA_SUCCESS)
		*object = client_named_take(session, reply.object);
	return result;
}

/* ---- memory apart from addresses ---- */

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType handleType, unsigned long long flags)
{
	return descriptor_export(shareableHandle, WIRE_DESCRIPTOR_MEMORY, (const void *)(uintptr_t)handle, handleType,
				 flags);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
					CUmemAllocationHandleType shHandleType)
{
	uint64_t object;
	CUresult result;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	result = descriptor_import(&object, (int)(intptr_t)osHandle, WIRE_DESCRIPTOR_MEMORY, shHandleType);
	if (result == CUDA_SUCCESS)
		*handle = object;
	return result;
}

/* ---- pools ---- */

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType,
					  unsigned long long flags)
{
	return descriptor_export(handle_out, WIRE_DESCRIPTOR_POOL, pool, handleType, flags);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle, CUmemAllocationHandleType handleType,
					    unsigned long long flags)
{
	uint64_t object;
	CUresult result;

	if (!pool_out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	result = descriptor_import(&object, (int)(intptr_t)handle, WIRE_DESCRIPTOR_POOL, handleType);
	if (result == CUDA_SUCCESS)
		*pool_out = (CUmemoryPool)(uintptr_t)object;
	return result;
}

struct opening {
	struct client_route route;
	struct wire_pool_pointer_import fixed;
};

static CUresult opening_take(void *opaque, unsigned attempt, struct client_range *range)
{
	const struct opening *opening = opaque;
	const struct client_request request = { WIRE_OP_POOL_POINTER_IMPORT, &opening->fixed, sizeof(opening->fixed),
						NULL, 0 };
	struct wire_pool_pointer_import_reply reply = { 0 };
	struct client_wait wait = { .reply = &reply, .reply_bytes = sizeof(reply) };
	CUresult result = descriptor_ask(&opening->route, &request, &wait);

	(void)attempt;
	range->base = reply.address;
	range->bytes = reply.bytes;
	return result;
}

static void opening_give(void *opaque, const struct client_range *range, uint64_t address)
{
	const struct opening *opening = opaque;
	const struct wire_memory_free fixed = { .address = address };
	const struct client_request request = { WIRE_OP_MEMORY_FREE, &fixed, sizeof(fixed), NULL, 0 };
	struct client_wait wait = { 0 };

	(void)range;
	client_call_to(&opening->route, &request, &wait);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData)
{
	struct opening opening;
	const struct client_placement placement = {
		.take = opening_take,
		.give = opening_give,
		.opaque = &opening,
	};
	struct client_range range = { .kind = MEMORY_DEVICE, .pool = pool, .apart = true };
	CUresult result = client_enter_any();

	/* The pool says whose memory it is: no context need be current. */
	if (result == CUDA_SUCCESS && client_context_current())
		result = client_enter();
	if (result != CUDA_SUCCESS)
		return result;
	if (!ptr_out || !shareData)
		return CUDA_ERROR_INVALID_VALUE;
	opening.fixed.pool = client_named_wire(pool, &range.session);
	memcpy(opening.fixed.data, shareData, sizeof(opening.fixed.data));
	opening.route = client_route_session(range.session);
	range.context = client_context_current();
	result = client_memory_place(&placement, &range);
	if (result == CUDA_SUCCESS)
		*ptr_out = range.base;
	return result;
}
