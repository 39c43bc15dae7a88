/* Addresses that are free here and on the GPU. */
#include "../exchange/exchange.h"
#include "../ground/message.h"
#include "../handles/route.h"
#include "exports.h"
#include "place.h"
#include "ranges.h"

#include <errno.h>

/* Attempts to find addresses that are free on both sides; where fillers are taken, each
 * keeps twice as many bytes away from the next. */
#define PLACEMENT_ATTEMPTS 12
/* Most fillers of one allocation: one for each attempt, and what fills the rest of blocks. */
#define PLACEMENT_FILLERS 256u
/* Drivers hand out less than this much in one block for many. */
#define BLOCK_SHARE_BYTES (1ull << 20)
#define BLOCK_GRAIN_BYTES 256u

CUresult client_memory_free_quietly(const struct client_route *route, uint64_t address)
{
	const struct wire_memory_free fixed = { .address = address };
	const struct client_request request = {
		.op = WIRE_OP_MEMORY_FREE,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct client_wait wait = { 0 };

	return client_call_to(route, &request, &wait);
}

/* Memory that is only to be in the way; 0: there is none. */
static uint64_t filler_take(const struct client_route *route, uint64_t bytes)
{
	const struct wire_memory_alloc fixed = { .bytes = bytes };
	const struct client_request request = {
		.op = WIRE_OP_MEMORY_ALLOC,
		.fixed = &fixed,
		.fixed_bytes = sizeof(fixed),
	};
	struct wire_memory_alloc_reply reply;
	struct client_wait wait = { .reply = &reply, .reply_bytes = sizeof(reply) };

	return client_call_to(route, &request, &wait) == CUDA_SUCCESS ? reply.address : 0;
}

struct fillers {
	uint64_t at[PLACEMENT_FILLERS];
	unsigned count;
};

static uint64_t filler_add(struct fillers *fillers, const struct client_route *route, uint64_t bytes)
{
	uint64_t address = fillers->count < PLACEMENT_FILLERS ? filler_take(route, bytes) : 0;

	if (address)
		fillers->at[fillers->count++] = address;
	return address;
}

/* Leave no room for `bytes` in the block of that address, where the driver would go on placing what is
 * small until nothing fits: the largest pieces first, so that few are needed. */
static void block_fill(struct fillers *fillers, const struct client_route *route, uint64_t address,
		       uint64_t bytes)
{
	const uint64_t block = address & ~(CLIENT_BLOCK_BYTES - 1);
	uint64_t piece = BLOCK_SHARE_BYTES, got;

	while (piece >= BLOCK_GRAIN_BYTES && piece > bytes / 2) {
		got = filler_add(fillers, route, piece);
		if (got && (got & ~(CLIENT_BLOCK_BYTES - 1)) == block)
			continue;
		/* What is elsewhere would draw the next pieces there. */
		if (got)
			client_memory_free_quietly(route, fillers->at[--fillers->count]);
		piece /= 2;
	}
}

CUresult client_memory_place(const struct client_placement *placement, struct client_range *range)
{
	uint64_t kept[PLACEMENT_ATTEMPTS];
	struct fillers fillers = { .count = 0 };
	const struct client_route route = client_route_context(range->context);
	unsigned kept_count = 0;
	CUresult result = CUDA_SUCCESS;
	int rc = -EEXIST;

	client_descriptors_look();
	for (unsigned attempt = 0; attempt < PLACEMENT_ATTEMPTS && rc == -EEXIST; attempt++) {
		result = placement->take(placement->opaque, attempt, range);
		if (result != CUDA_SUCCESS)
			break;
		/* No bytes are at no address. */
		rc = range->bytes ? client_memory_add(range) : 0;
		if (!rc)
			break;
		kept[kept_count++] = range->base;
		if (placement->fill && rc == -EEXIST) {
			if (range->bytes <= BLOCK_SHARE_BYTES)
				block_fill(&fillers, &route, range->base, range->bytes);
			filler_add(&fillers, &route, CLIENT_BLOCK_BYTES << attempt);
		}
	}
	while (kept_count)
		placement->give(placement->opaque, range, kept[--kept_count]);
	while (fillers.count)
		client_memory_free_quietly(&route, fillers.at[--fillers.count]);
	if (result == CUDA_SUCCESS && rc) {
		client_message("no addresses for %llu bytes are free both here and on the GPU",
			       (unsigned long long)range->bytes);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}
