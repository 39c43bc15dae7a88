/* Pinned memory that a server on this node copies from and to by itself: made here, passed to it
 * over the session's socket, and pinned there.  A copy is then a message without bytes, made in
 * stream order by the server's driver: what the device does by itself.  The server has it at the same
 * address, and so kernels use it, too: it is the memory of this machine that they are to see, while
 * the program changes it and waits for what they change.
 *
 * Where that can't be (another node, an older server, no memory of the kind, or more than the
 * server takes) pinned memory is this process's alone, and its bytes travel.
 */
#include "../exchange/exchange.h"
#include "../exchange/mapping.h"
#include "../exchange/outstanding.h"
#include "../exchange/pace.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "pinned.h"
#include "plane.h"
#include "ranges.h"
#include "shared_file.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../transport/ground/clofork.h"
#include "../../transport/rings/memory.h"
#include "../../transport/rings/shm.h"

/* What is smaller costs its copy as much as the message, and each piece is a mapping and a
 * descriptor's way: it is shared only to be mapped. */
#define SHARED_LEAST_BYTES (64u << 10)
/* A driver's rows are no further apart. */
#define SHARED_PITCH_MOST ((size_t)INT32_MAX)
/* How often another address is looked for that both processes have free, how far below the first one the next
 * is, doubled each time, behind whatever a driver has reserved there; and how far all of them reach. */
#define MAP_ATTEMPTS 8
#define MAP_STEP_BYTES (64ull << 30)
#define MAP_REACH_BYTES (MAP_STEP_BYTES << MAP_ATTEMPTS)

/* Pieces that have a name at the server. */
static _Atomic unsigned pieces;

/* Over descriptors and their offers, which come in the same order.  Before outbox.append. */
static pthread_mutex_t offer_lock = PTHREAD_MUTEX_INITIALIZER;

/* Ask the server, and return what it says; an earlier operation's failure, which the answer may tell as
 * well, is kept for a call that may return it. */
static CUresult shared_ask(const struct client_request *request)
{
	const struct client_route route = client_route_current();
	struct client_wait wait = { .result = CUDA_ERROR_DEVICE_UNAVAILABLE };
	struct client_context *context = client_context_current();
	CUresult result = client_call_to(&route, request, &wait);

	if (context && wait.result == CUDA_SUCCESS && result != CUDA_SUCCESS)
		atomic_store(&context->late, result);
	return wait.result;
}

static CUresult shared_name(enum wire_op op, uint64_t pinned)
{
	const struct wire_pinned_register fixed = { .pinned = pinned };
	const struct client_request request = { op, &fixed, sizeof(fixed), NULL, 0 };

	_Static_assert(sizeof(struct wire_pinned_register) == sizeof(struct wire_pinned_release),
		       "the two travel alike");
	return shared_ask(&request);
}

/* To that address, if it is free here, or to any. */
static bool memory_move(void **memory, size_t bytes, uint64_t wish)
{
	void *room = mmap((void *)(uintptr_t)wish, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			  0);

	if (room == MAP_FAILED)
		return false;
	if (mremap(*memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, room) == MAP_FAILED) {
		munmap(room, bytes);
		return false;
	}
	*memory = room;
	return true;
}

static CUresult shared_map_at(uint64_t pinned, const void *memory)
{
	const struct wire_pinned_map fixed = { .pinned = pinned, .address = (uint64_t)(uintptr_t)memory };
	const struct client_request request = { WIRE_OP_PINNED_MAP, &fixed, sizeof(fixed), NULL, 0 };

	return shared_ask(&request);
}

/* Have the server have it where it is here, or have it here where the server can have it. */
static bool shared_map(uint64_t pinned, void **memory, size_t bytes)
{
	static pthread_mutex_t looks = PTHREAD_MUTEX_INITIALIZER;
	static _Atomic uint64_t room_below;	/* both have had room there; 0: wherever it is here */
	CUresult result = CUDA_ERROR_ALREADY_MAPPED;
	uint64_t wish, step = MAP_STEP_BYTES;

	if (atomic_load(&room_below) <= MAP_REACH_BYTES + bytes)
		result = shared_map_at(pinned, *memory);
	if (result != CUDA_ERROR_ALREADY_MAPPED)
		return result == CUDA_SUCCESS;
	/* One thread after the other: they would look at the same addresses, and each find the others' memory there. */
	pthread_mutex_lock(&looks);
	wish = atomic_load(&room_below);
	wish = wish > MAP_REACH_BYTES + bytes ? wish - bytes : (uint64_t)(uintptr_t)*memory - step;
	for (unsigned attempt = 0; attempt < MAP_ATTEMPTS && result == CUDA_ERROR_ALREADY_MAPPED; attempt++) {
		result = memory_move(memory, bytes, wish) ? shared_map_at(pinned, *memory) : CUDA_ERROR_OUT_OF_MEMORY;
		step *= 2;
		wish -= step;
	}
	if (result == CUDA_SUCCESS)
		atomic_store(&room_below, (uint64_t)(uintptr_t)*memory);
	pthread_mutex_unlock(&looks);
	return result == CUDA_SUCCESS;
}

/* A name for one more piece; false: the server has as many as it takes, or memory is short. */
static bool piece_open(void *what, uint64_t *pinned)
{
	if (atomic_fetch_add(&pieces, 1) < WIRE_PINNED_PIECES &&
	    handle_open(&farbus_client.handles, HANDLE_PINNED, what, pinned) == 0)
		return true;
	atomic_fetch_sub(&pieces, 1);
	return false;
}

static bool shared_offer(struct client_session *session, int descriptor, const struct client_request *request)
{
	const struct client_route route = client_route_current();
	bool offered;

	pthread_mutex_lock(&offer_lock);
	offered = transport_shm_pass(&session->transport, descriptor) == 0 &&
		  client_post_to(&route, request) == CUDA_SUCCESS;
	pthread_mutex_unlock(&offer_lock);
	return offered;
}

static bool memory_share(size_t bytes, struct client_range *range)
{
	const bool maps = farbus_client.mapping == MAPPING_SHARED;
	struct client_session *session = maps || bytes >= SHARED_LEAST_BYTES ? client_pinned_session() : NULL;
	struct wire_pinned_offer fixed = { .bytes = bytes };
	const struct client_request offer = { WIRE_OP_PINNED_OFFER, &fixed, sizeof(fixed), NULL, 0 };
	uint64_t pinned;
	int descriptor;
	void *memory;

	if (!session || transport_memory_make("farbus-remoting-pinned", bytes, &memory, &descriptor))
		return false;
	if (piece_open(memory, &pinned)) {
		fixed.pinned = pinned;
		if (shared_offer(session, descriptor, &offer)) {
			range->mapped = maps && shared_map(pinned, &memory, bytes);
			if (range->mapped || shared_name(WIRE_OP_PINNED_REGISTER, pinned) == CUDA_SUCCESS) {
				clofork_close(descriptor);
				range->base = (uint64_t)(uintptr_t)memory;
				range->shared = pinned;
				return true;
			}
		}
		client_pinned_release(pinned);
	}
	clofork_close(descriptor);
	munmap(memory, bytes);
	return false;
}

bool client_pinned_share(size_t bytes, struct client_range *range)
{
	bool shared;
	int cancel;

	/* Nobody else knows of the descriptor and the memory. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	shared = memory_share(bytes, range);
	pthread_setcancelstate(cancel, &cancel);
	return shared;
}

static bool file_share(struct client_range *range)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), low = range->base & ~(page - 1);
	const uint64_t high = (range->base + range->bytes + page - 1) & ~(page - 1);
	struct client_session *session = farbus_client.mapping == MAPPING_SHARED ? client_pinned_session() : NULL;
	struct wire_pinned_offer_file fixed = { .bytes = high - low };
	const struct client_request offer = { WIRE_OP_PINNED_OFFER_FILE, &fixed, sizeof(fixed), NULL, 0 };
	struct wire_pinned_map there = { .address = low };
	const struct client_request map = { WIRE_OP_PINNED_MAP, &there, sizeof(there), NULL, 0 };
	int descriptor = session ? client_shared_file(low, high, &fixed.offset) : -1;

	if (descriptor < 0)
		return false;
	if (piece_open(range, &fixed.pinned)) {
		there.pinned = fixed.pinned;
		/* The program has it where it is. */
		range->mapped = shared_offer(session, descriptor, &offer) && shared_ask(&map) == CUDA_SUCCESS;
		if (range->mapped)
			range->shared = fixed.pinned;
		else
			client_pinned_release(fixed.pinned);
	}
	close(descriptor);
	return range->mapped;
}

bool client_pinned_share_file(struct client_range *range)
{
	bool shared;
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	shared = file_share(range);
	pthread_setcancelstate(cancel, &cancel);
	return shared;
}

void client_pinned_release(uint64_t pinned)
{
	(void)shared_name(WIRE_OP_PINNED_RELEASE, pinned);
	handle_close(&farbus_client.handles, HANDLE_PINNED, pinned);
	atomic_fetch_sub(&pieces, 1);
}

bool client_pinned_mapped(uint64_t address, size_t bytes)
{
	struct client_range range;

	return farbus_client.mapping == MAPPING_SHARED && client_memory_find(address, &range) &&
	       range.kind == MEMORY_PINNED && range.mapped && bytes <= range.base + range.bytes - address &&
	       !client_target_pending(farbus_client.sessions, address, bytes);
}

/* The same for a side of a box, from its address to behind the last byte that is copied. */
static bool side_mapped(const CUDA_MEMCPY3D *box, uint64_t address, size_t x, size_t y, size_t z, size_t pitch,
			size_t height)
{
	size_t rows, span;

	return box->WidthInBytes && box->Height && box->Depth &&
	       !__builtin_mul_overflow(z + box->Depth - 1, height ? height : box->Height, &rows) &&
	       !__builtin_add_overflow(rows, y + box->Height - 1, &rows) &&
	       !__builtin_mul_overflow(rows, pitch ? pitch : box->WidthInBytes, &span) &&
	       !__builtin_add_overflow(span, x + box->WidthInBytes, &span) && client_pinned_mapped(address, span);
}

void client_pinned_sides(CUDA_MEMCPY3D *box)
{
	if (box->srcMemoryType == CU_MEMORYTYPE_HOST)
		box->srcDevice = (uint64_t)(uintptr_t)box->srcHost;
	if ((box->srcMemoryType == CU_MEMORYTYPE_HOST || box->srcMemoryType == CU_MEMORYTYPE_UNIFIED) &&
	    side_mapped(box, box->srcDevice, box->srcXInBytes, box->srcY, box->srcZ, box->srcPitch, box->srcHeight))
		box->srcMemoryType = CU_MEMORYTYPE_DEVICE;
	if (box->dstMemoryType == CU_MEMORYTYPE_HOST)
		box->dstDevice = (uint64_t)(uintptr_t)box->dstHost;
	if ((box->dstMemoryType == CU_MEMORYTYPE_HOST || box->dstMemoryType == CU_MEMORYTYPE_UNIFIED) &&
	    side_mapped(box, box->dstDevice, box->dstXInBytes, box->dstY, box->dstZ, box->dstPitch, box->dstHeight))
		box->dstMemoryType = CU_MEMORYTYPE_DEVICE;
}

void client_pinned_sides_here(CUDA_MEMCPY3D *box)
{
	struct client_range range;

	if (box->srcMemoryType == CU_MEMORYTYPE_DEVICE && client_memory_find(box->srcDevice, &range) &&
	    range.kind == MEMORY_PINNED) {
		box->srcMemoryType = CU_MEMORYTYPE_HOST;
		box->srcHost = (const void *)(uintptr_t)box->srcDevice;
	}
	if (box->dstMemoryType == CU_MEMORYTYPE_DEVICE && client_memory_find(box->dstDevice, &range) &&
	    range.kind == MEMORY_PINNED) {
		box->dstMemoryType = CU_MEMORYTYPE_HOST;
		box->dstHost = (void *)(uintptr_t)box->dstDevice;
	}
}

static CUresult copy_post(struct wire_copy_pinned *request)
{
	client_stream_pace(request->stream, CLIENT_WEIGHT_WORK, 0);
	return client_post_work(WIRE_OP_COPY_PINNED, request, sizeof(*request), NULL, 0);
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
	    client_target_pending(farbus_client.sessions, host->address, span))
		return false;
	request = (struct wire_copy_pinned){
		.pinned = range.shared,
		.offset = host->address - (range.base & ~((uint64_t)sysconf(_SC_PAGESIZE) - 1)),
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
