/* Pinned memory that a server on this node copies from and to by itself: made here, passed to it
 * over the session's socket, and pinned there.  A copy is then a message without bytes, made in
 * stream order by the server's driver: what the device does by itself.
 *
 * Where that can't be (another node, an older server, no memory of the kind, or more than the
 * server takes) pinned memory is this process's alone, and its bytes travel.
 */
#include "across.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* What is smaller costs its copy as much as the message, and each piece is a mapping and a
 * descriptor's way. */
#define SHARED_LEAST_BYTES (64u << 10)
/* A driver's rows are no further apart. */
#define SHARED_PITCH_MOST ((size_t)INT32_MAX)

/* Over descriptors and their offers, which come in the same order.  Before outbox.append. */
static pthread_mutex_t offer_lock = PTHREAD_MUTEX_INITIALIZER;

/* The session that shares pinned memory; NULL: none.  With several servers a copy may be ordered
 * behind another server's, which only this process sees. */
static struct client_session *sharing_session(void)
{
	struct client_session *session = farbus_client.sessions;

	return client_alone() && session->transport.shm &&
			       client_session_has(session, WIRE_OP_PINNED_OFFER) &&
			       client_session_has(session, WIRE_OP_COPY_PINNED)
		       ? session
		       : NULL;
}

/* Ask the server; an earlier operation's failure, which the answer may tell as well, is kept for a call
 * that may return it.  True: it did so. */
static bool shared_ask(enum wire_op op, uint64_t pinned)
{
	const struct client_route route = client_route_current();
	const struct wire_pinned_register fixed = { .pinned = pinned };
	const struct client_request request = {
		.op = op,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };
	struct client_context *context = client_context_current();
	CUresult result = client_call_to(&route, &request, &wait);

	_Static_assert(sizeof(struct wire_pinned_register) == sizeof(struct wire_pinned_release),
		       "the two travel alike");
	if (context && wait.result == CUDA_SUCCESS && result != CUDA_SUCCESS)
		atomic_store(&context->late, result);
	return wait.result == CUDA_SUCCESS;
}

static bool shared_offer(struct client_session *session, int descriptor, uint64_t pinned, size_t bytes)
{
	const struct client_route route = client_route_current();
	const struct wire_pinned_offer fixed = { .pinned = pinned, .bytes = bytes };
	const struct client_request request = {
		.op = WIRE_OP_PINNED_OFFER,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	bool offered;

	pthread_mutex_lock(&offer_lock);
	offered = transport_shm_pass(&session->transport, descriptor) == 0 &&
		  client_post_to(&route, &request) == CUDA_SUCCESS;
	pthread_mutex_unlock(&offer_lock);
	return offered && shared_ask(WIRE_OP_PINNED_REGISTER, pinned);
}

static void *memory_share(size_t bytes, uint64_t *pinned)
{
	struct client_session *session = bytes >= SHARED_LEAST_BYTES ? sharing_session() : NULL;
	int descriptor;
	void *memory;

	if (!session || transport_memory_make("farbus-remoting-pinned", bytes, &memory, &descriptor))
		return NULL;
	if (handle_open(&farbus_client.handles, HANDLE_PINNED, memory, pinned) == 0) {
		if (shared_offer(session, descriptor, *pinned, bytes)) {
			close(descriptor);
			return memory;
		}
		client_pinned_release(*pinned);
	}
	close(descriptor);
	munmap(memory, bytes);
	return NULL;
}

void *client_pinned_share(size_t bytes, uint64_t *pinned)
{
	void *memory;
	int cancel;

	/* Nobody else knows of the descriptor and the memory. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	memory = memory_share(bytes, pinned);
	pthread_setcancelstate(cancel, &cancel);
	return memory;
}

void client_pinned_release(uint64_t pinned)
{
	(void)shared_ask(WIRE_OP_PINNED_RELEASE, pinned);
	handle_close(&farbus_client.handles, HANDLE_PINNED, pinned);
}

/* Is anything of the range still to be written by this process, with bytes that come?  The
 * server's own copies would not wait for that. */
static bool target_pending(struct client_session *session, uint64_t base, size_t span)
{
	bool pending = false;

	client_guard_begin();
	pthread_mutex_lock(&session->wait_lock);
	for (const struct client_target *target = session->targets; target && !pending;
	     target = target->next) {
		uint64_t low = (uint64_t)(uintptr_t)target->host;
		uint64_t high = low + (target->height - 1) * target->pitch + target->width;

		pending = low < base + span && base < high;
	}
	pthread_mutex_unlock(&session->wait_lock);
	client_guard_end();
	return pending;
}

static CUresult copy_post(struct wire_copy_pinned *request)
{
	client_stream_pace(request->stream, CLIENT_WEIGHT_WORK, 0);
	return client_post(WIRE_OP_COPY_PINNED, request, sizeof(*request), NULL, 0);
}

bool client_pinned_copy(const struct client_plane *to, const struct client_plane *from,
			const struct client_extent *extent, size_t span, uint64_t stream,
			bool async, CUresult *result)
{
	const bool to_device = to->kind == MEMORY_DEVICE;
	const struct client_plane *host = to_device ? from : to, *device = to_device ? to : from;
	struct client_range range;
	struct wire_copy_pinned request;

	if (host->kind != MEMORY_PINNED || device->kind != MEMORY_DEVICE ||
	    !client_memory_find(host->address, &range) || !range.shared ||
	    span > range.base + range.bytes - host->address ||
	    target_pending(farbus_client.sessions, host->address, span))
		return false;
	request = (struct wire_copy_pinned){
		.pinned = range.shared,
		.offset = host->address - range.base,
		.host_pitch = extent->height == 1 ? extent->width : host->pitch,
		.device = device->address,
		.pitch = extent->height == 1 ? extent->width : device->pitch,
		.width = extent->width,
		.height = extent->height,
		.to_device = to_device,
		.waited = !async,
		.stream = stream,
	};
	if (request.host_pitch <= SHARED_PITCH_MOST) {
		*result = copy_post(&request);
		return true;
	}
	request.height = 1;
	request.host_pitch = request.pitch = extent->width;
	*result = CUDA_SUCCESS;
	for (size_t y = 0; y < extent->height && *result == CUDA_SUCCESS; y++) {
		*result = copy_post(&request);
		request.offset += host->pitch;
		request.device += device->pitch;
	}
	return true;
}
