/* Pinned memory that this process shares with the client: the client makes it and passes its
 * descriptor (native/transport/rings/shm.c), this process maps it and has the driver pin it.  The driver
 * then copies from there and to there by itself, in stream order.  Where it can be at the client's
 * address, the driver maps it for the devices, and kernels use it as the memory of this machine that
 * it is.
 *
 * What is in it, the client changes at any time, as with the driver's own pinned memory; its
 * length nobody changes.  Its pages are charged to the client, who has touched them first.
 */
#include "../ground/lead.h"
#include "../ground/resolve.h"
#include "copies.h"
#include "in_place.h"
#include "pinned.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../transport/rings/memory.h"

/* Up to this size the lead is kept for a copy that the client waits for: a worker of the driver's and
 * another leader, one waked behind the other, cost as much as a good part of a MiB.  What is
 * larger would keep a thread that comes meanwhile waiting for longer than some 2 ms. */
#define PINNED_AT_ONCE_BYTES (16u << 20)

/* Clients have their memory far above: what is below, addresses near zero among it, stays free of it. */
#define PINNED_LEAST_ADDRESS (1ull << 32)

/* A context with work that may use the memory. */
struct pinned_user {
	struct pinned_user *next;
	CUcontext context;
};

struct server_shared {
	struct server_shared *next;
	uint64_t handle;
	uint8_t *memory;
	size_t bytes;
	bool busy;			/* the driver is just pinning it */
	CUcontext owner;		/* the context that it is pinned in; NULL: none */
	struct pinned_user *users;
};

/* Half of the machine's memory: as much as pinned memory may take before the rest suffers. */
static uint64_t pinned_limit(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) / 2 * (uint64_t)sysconf(_SC_PAGESIZE);
}

static bool shared_room(struct server *server, uint64_t bytes)
{
	bool room;

	pthread_mutex_lock(&server->shared_lock);
	room = server->shared_count < WIRE_PINNED_PIECES && bytes && bytes <= pinned_limit() &&
	       server->shared_bytes <= pinned_limit() - bytes;
	pthread_mutex_unlock(&server->shared_lock);
	return room;
}

/* Take what was mapped under the client's name. */
static CUresult shared_add(struct server *server, uint64_t pinned, void *memory, size_t bytes)
{
	struct server_shared *shared = calloc(1, sizeof(*shared));
	bool bound;

	if (!shared) {
		munmap(memory, bytes);
		return CUDA_SUCCESS;
	}
	shared->handle = pinned;
	shared->memory = memory;
	shared->bytes = bytes;
	/* Whoever finds it finds it in the list, too: another thread may be about to release what has this name. */
	pthread_mutex_lock(&server->shared_lock);
	bound = !handle_bind(&server->objects, HANDLE_PINNED, pinned, shared);
	if (bound) {
		shared->next = server->shared;
		server->shared = shared;
		server->shared_count++;
		server->shared_bytes += bytes;
	}
	pthread_mutex_unlock(&server->shared_lock);
	if (bound)
		return CUDA_SUCCESS;
	munmap(memory, bytes);
	free(shared);
	return SERVER_MALFORMED;
}

/* Silent where it may not be shared: pinned_register says so, and the client does without. */
CUresult serve_pinned_offer(struct server_call *call)
{
	const struct wire_pinned_offer *request = call->request;
	struct server *server = call->server;
	void *memory;

	if (call->descriptor < 0)
		return CUDA_SUCCESS;
	if (!shared_room(server, request->bytes)) {
		close(call->descriptor);
		return CUDA_SUCCESS;
	}
	if (transport_memory_take(&server->transport, call->descriptor, request->bytes, true, &memory))
		return CUDA_SUCCESS;
	return shared_add(server, request->pinned, memory, request->bytes);
}

CUresult serve_pinned_offer_file(struct server_call *call)
{
	const struct wire_pinned_offer_file *request = call->request;
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct server *server = call->server;
	void *memory;

	if (call->descriptor < 0)
		return CUDA_SUCCESS;
	if (request->offset % page || request->bytes % page || !shared_room(server, request->bytes)) {
		close(call->descriptor);
		return CUDA_SUCCESS;
	}
	if (transport_file_take(&server->transport, call->descriptor, request->offset, request->bytes, &memory))
		return CUDA_SUCCESS;
	return shared_add(server, request->pinned, memory, request->bytes);
}

/* `shared_lock` is held. */
static bool shared_used(struct server_shared *shared, CUcontext context)
{
	struct pinned_user *user;

	for (user = shared->users; user; user = user->next)
		if (user->context == context)
			return true;
	user = malloc(sizeof(*user));
	if (!user)
		return false;
	*user = (struct pinned_user){ .next = shared->users, .context = context };
	shared->users = user;
	return true;
}

/* Memory that the driver is to pin, and that nobody else pins or releases meanwhile; NULL: there is none. */
static struct server_shared *shared_begin(struct server *server, uint64_t pinned)
{
	struct server_shared *shared;

	pthread_mutex_lock(&server->shared_lock);
	shared = handle_get(&server->objects, HANDLE_PINNED, pinned);
	if (shared && (shared->busy || shared->owner))
		shared = NULL;
	if (shared)
		shared->busy = true;
	pthread_mutex_unlock(&server->shared_lock);
	return shared;
}

static CUresult shared_pinned(struct server_call *call, struct server_shared *shared, CUresult result)
{
	struct server *server = call->server;

	pthread_mutex_lock(&server->shared_lock);
	shared->busy = false;
	if (result == CUDA_SUCCESS)
		shared->owner = call->context->real;
	pthread_mutex_unlock(&server->shared_lock);
	return result;
}

CUresult serve_pinned_register(struct server_call *call)
{
	const struct wire_pinned_register *request = call->request;
	const struct server_driver *driver = call->driver;
	struct server_shared *shared = shared_begin(call->server, request->pinned);
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;

	if (!shared)
		return CUDA_ERROR_INVALID_HANDLE;
	/* Memory that is not pinned the driver would read at the call, not in its stream. */
	if (driver->cuMemHostRegister_v2 && driver->cuMemHostUnregister)
		result = driver->cuMemHostRegister_v2(shared->memory, shared->bytes,
						      CU_MEMHOSTREGISTER_PORTABLE);
	return shared_pinned(call, shared, result);
}

/* To that address, if nothing of this process's is there. */
static CUresult shared_move(struct server_shared *shared, uint64_t address)
{
	void *wanted = (void *)(uintptr_t)address, *room;

	if (shared->memory == wanted)
		return CUDA_SUCCESS;
	room = mmap(wanted, shared->bytes, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (room == MAP_FAILED)
		return errno == EEXIST ? CUDA_ERROR_ALREADY_MAPPED : CUDA_ERROR_OUT_OF_MEMORY;
	/* A kernel before 4.17 takes the address as a wish. */
	if (room != wanted ||
	    mremap(shared->memory, shared->bytes, shared->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, room) ==
		    MAP_FAILED) {
		munmap(room, shared->bytes);
		return room != wanted ? CUDA_ERROR_ALREADY_MAPPED : CUDA_ERROR_OUT_OF_MEMORY;
	}
	shared->memory = wanted;
	return CUDA_SUCCESS;
}

/* Do kernels have it at the address that it has here? */
static CUresult shared_map(const struct server_driver *driver, struct server_shared *shared)
{
	CUdeviceptr device = 0;
	CUresult result;

	if (!driver->cuMemHostRegister_v2 || !driver->cuMemHostUnregister ||
	    !driver->cuMemHostGetDevicePointer_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = driver->cuMemHostRegister_v2(shared->memory, shared->bytes,
					      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (result != CUDA_SUCCESS)
		return result;
	result = driver->cuMemHostGetDevicePointer_v2(&device, shared->memory, 0);
	if (result == CUDA_SUCCESS && device == (uintptr_t)shared->memory)
		return CUDA_SUCCESS;
	(void)driver->cuMemHostUnregister(shared->memory);
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult serve_pinned_map(struct server_call *call)
{
	const struct wire_pinned_map *request = call->request;
	struct server *server = call->server;
	struct server_shared *shared;
	CUresult result;
	bool used;

	if (request->address % (uint64_t)sysconf(_SC_PAGESIZE) || request->address < PINNED_LEAST_ADDRESS)
		return SERVER_MALFORMED;
	shared = shared_begin(server, request->pinned);
	if (!shared)
		return CUDA_ERROR_INVALID_HANDLE;
	result = shared_move(shared, request->address);
	if (result == CUDA_SUCCESS)
		result = shared_map(call->driver, shared);
	/* Any kernel may use it, and nothing tells which: whoever releases it waits for those of its own context. */
	pthread_mutex_lock(&server->shared_lock);
	used = result != CUDA_SUCCESS || shared_used(shared, call->context->real);
	pthread_mutex_unlock(&server->shared_lock);
	if (!used) {
		(void)call->driver->cuMemHostUnregister(shared->memory);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return shared_pinned(call, shared, result);
}

/* ---- the end ---- */

static void context_wait(struct server_call *call, CUcontext context)
{
	call->thread->current = NULL;
	if (call->driver->cuCtxSetCurrent(context) == CUDA_SUCCESS)
		/* Whatever it says, nothing of it runs any more. */
		(void)call->driver->cuCtxSynchronize();
}

/* It is in no list any more; `shared_end` is held. */
static void shared_end(struct server_call *call, struct server_shared *shared)
{
	const struct server_driver *driver = call->driver;
	struct server *server = call->server;
	struct pinned_user *user;

	while ((user = shared->users)) {
		shared->users = user->next;
		context_wait(call, user->context);
		free(user);
	}
	call->thread->current = NULL;
	if (shared->owner && driver->cuCtxSetCurrent(shared->owner) == CUDA_SUCCESS)
		(void)driver->cuMemHostUnregister(shared->memory);
	munmap(shared->memory, shared->bytes);
	pthread_mutex_lock(&server->shared_lock);
	server->shared_count--;
	server->shared_bytes -= shared->bytes;
	pthread_mutex_unlock(&server->shared_lock);
	free(shared);
}

/* Nobody finds it any more; `shared_lock` is held. */
static void shared_unlink(struct server *server, struct server_shared *shared)
{
	struct server_shared **link = &server->shared;

	while (*link != shared)
		link = &(*link)->next;
	*link = shared->next;
	handle_close(&server->objects, HANDLE_PINNED, shared->handle);
}

CUresult serve_pinned_release(struct server_call *call)
{
	const struct wire_pinned_release *request = call->request;
	struct server *server = call->server;
	struct server_shared *shared;

	/* No context of its users is destroyed meanwhile. */
	pthread_mutex_lock(&server->shared_end);
	pthread_mutex_lock(&server->shared_lock);
	shared = handle_get(&server->objects, HANDLE_PINNED, request->pinned);
	if (shared && shared->busy)
		shared = NULL;
	if (shared)
		shared_unlink(server, shared);
	pthread_mutex_unlock(&server->shared_lock);
	if (shared)
		shared_end(call, shared);
	pthread_mutex_unlock(&server->shared_end);
	return shared ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* One that is pinned in the context; else it is no longer among any's users. */
static struct server_shared *shared_of(struct server *server, CUcontext context, bool *used)
{
	struct server_shared *found = NULL;

	pthread_mutex_lock(&server->shared_lock);
	for (struct server_shared *each = server->shared; each && !found; each = each->next) {
		if (each->owner == context && !each->busy)
			found = each;
		for (struct pinned_user **link = &each->users; *link && !found;) {
			struct pinned_user *user = *link;

			if (user->context != context) {
				link = &user->next;
				continue;
			}
			*used = true;
			*link = user->next;
			free(user);
		}
	}
	if (found)
		shared_unlink(server, found);
	pthread_mutex_unlock(&server->shared_lock);
	return found;
}

void server_pinned_forget(struct server_call *call, struct server_context *context)
{
	struct server *server = call->server;
	struct server_shared *shared;
	bool used = false;

	pthread_mutex_lock(&server->shared_end);
	while ((shared = shared_of(server, context->real, &used)))
		shared_end(call, shared);
	if (used)
		context_wait(call, context->real);
	pthread_mutex_unlock(&server->shared_end);
}

/* ---- copies ---- */

static CUresult shared_copy(struct server_call *call, const struct wire_copy_pinned *request,
			    uint8_t *host, CUstream stream)
{
	const struct server_driver *driver = call->driver;
	size_t bytes = request->width * request->height;
	CUDA_MEMCPY2D rows;
	const bool linear = request->height == 1 || (request->pitch == request->width &&
						     request->host_pitch == request->width);

	/* There is nothing that it would wait for, and its end is what the client asks for next. */
	if (linear && request->waited && bytes <= PINNED_AT_ONCE_BYTES && server_is_alone(call->server) &&
	    driver->cuMemcpyHtoD_v2 && driver->cuMemcpyDtoH_v2 && server_stream_is_idle(call, stream))
		return request->to_device ? driver->cuMemcpyHtoD_v2(request->device, host, bytes)
					  : driver->cuMemcpyDtoH_v2(host, request->device, bytes);
	if (linear)
		return request->to_device
			       ? driver->cuMemcpyHtoDAsync_v2(request->device, host, bytes, stream)
			       : driver->cuMemcpyDtoHAsync_v2(host, request->device, bytes, stream);
	rows = server_rows(request->to_device, host, request->host_pitch, request->device, request->pitch, request->width,
			   request->height);
	return driver->cuMemcpy2DAsync_v2(&rows, stream);
}

CUresult serve_copy_pinned(struct server_call *call)
{
	const struct wire_copy_pinned *request = call->request;
	struct server *server = call->server;
	struct server_shared *shared;
	CUcontext context;
	CUstream stream;
	uint64_t span;
	CUresult result = server_resolve_stream(call, request->stream, &stream);

	if (!server_plane_sane(request->pitch, request->width, request->height) ||
	    !server_plane_sane(request->host_pitch, request->width, request->height) ||
	    __builtin_mul_overflow(request->height - 1, request->host_pitch, &span) ||
	    __builtin_add_overflow(span, request->width, &span))
		return SERVER_MALFORMED;
	if (result != CUDA_SUCCESS)
		return result;
	if (!stream || !call->driver->cuStreamGetCtx ||
	    call->driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
		context = call->context->real;
	/* Held until it is queued: from then on whoever releases the memory waits for it. */
	pthread_mutex_lock(&server->shared_lock);
	shared = handle_get(&server->objects, HANDLE_PINNED, request->pinned);
	if (!shared || !shared->owner)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (request->offset > shared->bytes || span > shared->bytes - request->offset)
		result = SERVER_MALFORMED;
	else if (!shared_used(shared, context))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else
		result = shared_copy(call, request, shared->memory + request->offset, stream);
	pthread_mutex_unlock(&server->shared_lock);
	return result;
}
