/* Managed memory that there is: allocations, and variables of modules.
 *
 * At the server it is plain memory of one device (with several devices, what that driver
 * calls managed), for this process is the host; see pages.h for what is where. */
#include "../../generated/client_raw.h"
#include "../addresses/place.h"
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "active.h"
#include "home.h"
#include "managed.h"
#include "managed_alloc.h"
#include "pages.h"
#include "regions.h"

#include <stdlib.h>
#include <string.h>

/* Allocations of at most this share regions of that many bytes. */
#define SHARED_MOST (1ull << 20)
#define SHARED_BYTES (2ull << 20)

static uint64_t pages_of(uint64_t bytes)
{
	return (bytes + PAGE_BYTES - 1) / PAGE_BYTES;
}

static CUresult backing_take(void *opaque, unsigned attempt, struct client_range *range)
{
	struct wire_memory_alloc fixed = { .bytes = range->bytes };
	struct wire_memory_alloc_reply reply;
	CUdeviceptr address = 0;
	CUresult result;

	(void)opaque;
	(void)attempt;
	if (farbus_client.device_count == 1) {
		result = client_call(WIRE_OP_MEMORY_ALLOC, &fixed, sizeof(fixed), &reply, sizeof(reply));
		address = reply.address;
	} else {
		result = client_raw_cuMemAllocManaged(&address, range->bytes, CU_MEM_ATTACH_GLOBAL);
	}
	if (result == CUDA_SUCCESS)
		range->base = address;
	return result;
}

static CUresult backing_free(const struct client_context *context, uint64_t address)
{
	const struct client_route route = client_route_context(context);

	return client_memory_free_quietly(&route, address);
}

static void backing_give(void *opaque, const struct client_range *range, uint64_t address)
{
	(void)opaque;
	backing_free(range->context, address);
}

/* A region with room for so many pages. */
static CUresult region_open(struct client_context *context, uint64_t bytes, bool mapped,
			    struct managed_region **region)
{
	const struct client_placement placement = {
		.take = backing_take,
		.give = backing_give,
		.fill = true,
	};
	struct client_range range = {
		.kind = MEMORY_DEVICE,
		.context = context,
		.reserved = true,
		.managed = true,
		/* Drivers give 256 bytes' alignment, this wants a page's. */
		.bytes = bytes < SHARED_BYTES ? SHARED_BYTES
					      : pages_of(bytes) * PAGE_BYTES + PAGE_BYTES,
	};
	struct managed_home *home = client_home(context);
	CUresult result;
	uint64_t base;

	if (!home)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	result = client_memory_place(&placement, &range);
	if (result != CUDA_SUCCESS)
		return result;
	base = pages_of(range.base) * PAGE_BYTES;
	*region = client_pages_make(base, (range.base + range.bytes - base) / PAGE_BYTES, mapped);
	if (*region) {
		(*region)->device = range.base;
		(*region)->home = home;
	}
	if (*region && client_pages_add(*region))
		return CUDA_SUCCESS;
	backing_free(context, range.base);
	client_memory_remove(range.base, MEMORY_DEVICE, &range);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult region_close(struct managed_region *region)
{
	const struct client_context *context = region->home->context;
	uint64_t device = region->device;
	struct client_range range;
	CUresult result;

	client_pages_remove(region);
	/* Nothing else may be put there before the server has freed it. */
	result = backing_free(context, device);
	client_memory_remove(device, MEMORY_DEVICE, &range);
	return result;
}

/* The first gap between blocks that has room; false: there is none. */
static bool gap_find(const struct managed_region *region, size_t count, size_t *index, size_t *first)
{
	size_t at = 0;

	for (size_t i = 0; i <= region->block_count; i++) {
		size_t end = i < region->block_count ? region->blocks[i].first : region->pages;

		if (end - at >= count) {
			*index = i;
			*first = at;
			return true;
		}
		if (i < region->block_count)
			at = region->blocks[i].first + region->blocks[i].count;
	}
	return false;
}

static struct managed_block *block_insert(struct managed_region *region, size_t index,
					  const struct managed_block *block)
{
	if (region->block_count == region->block_room) {
		size_t room = region->block_room ? 2 * region->block_room : 4;
		struct managed_block *grown = realloc(region->blocks, room * sizeof(*grown));

		if (!grown)
			return NULL;
		region->blocks = grown;
		region->block_room = room;
	}
	memmove(&region->blocks[index + 1], &region->blocks[index],
		(region->block_count - index) * sizeof(*region->blocks));
	region->blocks[index] = *block;
	region->block_count++;
	return &region->blocks[index];
}

static void block_erase(struct managed_region *region, const struct managed_block *block)
{
	size_t index = (size_t)(block - region->blocks);

	region->block_count--;
	memmove(&region->blocks[index], &region->blocks[index + 1],
		(region->block_count - index) * sizeof(*region->blocks));
}

static CUresult allocate(struct client_context *context, uint64_t bytes, unsigned flags, bool mapped,
			 uint64_t *address)
{
	struct managed_block block = {
		.count = pages_of(bytes),
		.bytes = bytes,
		.context = context,
		.attach = !mapped && flags == CU_MEM_ATTACH_HOST ? ATTACH_HOST : ATTACH_GLOBAL,
		.advice = { 0, MANAGED_LOCATION_NONE, MANAGED_LOCATION_NONE, MANAGED_LOCATION_NONE },
	};
	struct client_range range = {
		.kind = MEMORY_DEVICE,
		.bytes = bytes,
		.context = context,
		.session = context->session,
		.accessible = true,
		.managed = true,
		.mapped = mapped,
		.flags = flags,
	};
	struct managed_region *region = NULL;
	struct managed_block *placed;
	bool found = false;
	size_t index = 0;
	CUresult result;

	for (size_t i = 0; i < client_pages_count() && bytes <= SHARED_MOST && !found; i++) {
		region = client_pages_at(i);
		found = region->device && region->mapped == mapped && region->home->context == context &&
			region->pages <= SHARED_BYTES / PAGE_BYTES &&
			gap_find(region, block.count, &index, &block.first);
	}
	if (!found) {
		result = region_open(context, bytes, mapped, &region);
		if (result != CUDA_SUCCESS)
			return result;
		gap_find(region, block.count, &index, &block.first);
	}
	placed = block_insert(region, index, &block);
	result = placed ? client_pages_fresh(region, block.first, block.count)
			: CUDA_ERROR_OUT_OF_MEMORY;
	range.base = region->base + block.first * PAGE_BYTES;
	if (result == CUDA_SUCCESS && client_memory_map(&range)) {
		client_pages_free(region, block.first, block.count);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result != CUDA_SUCCESS) {
		if (placed)
			block_erase(region, placed);
		if (!found)
			region_close(region);
		return result;
	}
	*address = range.base;
	return CUDA_SUCCESS;
}

static CUresult allocate_here(uint64_t bytes, unsigned flags, bool mapped, uint64_t *address)
{
	CUresult result = client_home_make(client_context_current());

	if (result != CUDA_SUCCESS)
		return result;
	client_pages_lock();
	result = client_pages_start() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS)
		result = allocate(client_context_current(), bytes, flags, mapped, address);
	if (result == CUDA_SUCCESS)
		client_managed_begin();
	client_pages_unlock();
	return result;
}

CUresult client_mapped_alloc(uint64_t bytes, unsigned flags, uint64_t *address)
{
	return allocate_here(bytes, flags, true, address);
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	CUresult result = client_enter();
	uint64_t address = 0;

	if (result != CUDA_SUCCESS)
		return result;
	if (!client_managed_offered())
		return client_managed_refuse();
	if (!dptr || !bytesize || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	if (bytesize > UINT64_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = allocate_here(bytesize, flags, false, &address);
	/* It may itself lie in managed memory, and come when it is touched. */
	if (result == CUDA_SUCCESS)
		*dptr = address;
	return result;
}

bool client_managed_free(uint64_t address, CUresult *result)
{
	struct managed_region *region;
	struct managed_block *block;
	struct client_context *context;
	CUresult waited_for;

	if (!client_managed_any())
		return false;
	client_pages_lock();
	region = client_pages_find(address);
	block = region && region->device
			? client_pages_block(region, (address - region->base) / PAGE_BYTES)
			: NULL;
	if (!block || region->base + block->first * PAGE_BYTES != address) {
		client_pages_unlock();
		return false;
	}
	context = block->context;
	client_pages_unlock();
	/* Work that may still use it ends first, as with any memory.  Host functions may have
	 * to end for that, and they need the lock. */
	waited_for = cuCtxSynchronize_v2(context->handle);
	if (waited_for == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
	    waited_for == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) {
		*result = waited_for;
		return true;
	}
	client_pages_lock();
	region = client_pages_find(address);
	block = region ? client_pages_block(region, (address - region->base) / PAGE_BYTES) : NULL;
	if (block) {
		size_t first = block->first, count = block->count;

		client_memory_unmap(address, count * PAGE_BYTES);
		block_erase(region, block);
		client_pages_free(region, first, count);
		if (!region->block_count)
			*result = region_close(region);
		else
			*result = CUDA_SUCCESS;
		if (*result == CUDA_SUCCESS)
			*result = waited_for;
	} else {
		*result = CUDA_ERROR_INVALID_VALUE;
	}
	client_pages_unlock();
	return true;
}

/* The context is destroyed, and its memory at the server with it. */
void client_managed_forget_context(const struct client_context *context)
{
	if (!client_managed_any())
		return;
	client_pages_lock();
	for (size_t i = client_pages_count(); i-- > 0;) {
		struct managed_region *region = client_pages_at(i);

		if (region->home->context != context)
			continue;
		for (size_t n = 0; n < region->block_count; n++)
			client_memory_unmap(region->base + region->blocks[n].first * PAGE_BYTES,
					    region->blocks[n].count * PAGE_BYTES);
		client_pages_remove(region);
	}
	client_active_forget(context);
	client_home_forget(context);
	client_pages_unlock();
}

/* ---- variables of modules ---- */

static bool region_has(const struct managed_region *region, uint64_t address)
{
	for (size_t i = 0; i < region->piece_count; i++)
		if (region->pieces[i].address == address)
			return true;
	return false;
}

/* Make one region of all variables that share pages with these; NULL: no memory. */
static struct managed_region *region_merge(struct managed_home *home, uint64_t base, uint64_t end,
					   const struct managed_piece *piece)
{
	struct managed_region *merged, *other;
	size_t count = 1;

	for (uint64_t at = base; at < end; at += PAGE_BYTES) {
		other = client_pages_find(at);
		if (!other)
			continue;
		if (client_pages_flush(other, 0, other->pages, false) != CUDA_SUCCESS)
			return NULL;
		base = other->base < base ? other->base : base;
		at = other->base + other->pages * PAGE_BYTES;
		end = at > end ? at : end;
		at -= PAGE_BYTES;
		count += other->piece_count;
	}
	merged = client_pages_make(base, (end - base) / PAGE_BYTES, false);
	if (!merged)
		return NULL;
	merged->pieces = calloc(count, sizeof(*merged->pieces));
	if (!merged->pieces) {
		client_pages_unmake(merged);
		return NULL;
	}
	for (uint64_t at = base; at < end; at += PAGE_BYTES) {
		other = client_pages_find(at);
		if (!other)
			continue;
		memcpy(merged->pieces + merged->piece_count, other->pieces,
		       other->piece_count * sizeof(*other->pieces));
		merged->piece_count += other->piece_count;
		client_pages_remove(other);
	}
	merged->pieces[merged->piece_count++] = *piece;
	merged->home = home;
	return client_pages_add(merged) ? merged : NULL;
}

CUresult client_managed_variable(struct client_library *library, struct client_context *context,
				 uint64_t address, uint64_t bytes)
{
	const struct managed_piece piece = { address, bytes, library };
	struct managed_region *region;
	struct managed_home *home;
	CUresult result = client_home_make(context);

	if (result != CUDA_SUCCESS)
		return result;
	client_pages_lock();
	if (client_pages_start()) {
		client_pages_unlock();
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	region = client_pages_find(address);
	if (region && region_has(region, address)) {
		client_pages_unlock();
		return CUDA_SUCCESS;
	}
	home = client_home(context);
	region = home ? region_merge(home, address & ~(PAGE_BYTES - 1),
				     pages_of(address + bytes) * PAGE_BYTES, &piece)
		      : NULL;
	if (!home)
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else
		result = region ? client_pages_known(region) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS) {
		client_managed_begin();
		client_managed_bring();
	}
	client_pages_unlock();
	return result;
}

void client_managed_forget_library(const struct client_library *library)
{
	if (!client_managed_any())
		return;
	client_pages_lock();
	for (size_t i = client_pages_count(); i-- > 0;) {
		struct managed_region *region = client_pages_at(i);
		size_t kept = 0;

		for (size_t n = 0; n < region->piece_count; n++)
			if (region->pieces[n].library != library)
				region->pieces[kept++] = region->pieces[n];
		if (region->piece_count && !kept)
			client_pages_remove(region);
		else
			region->piece_count = kept;
	}
	client_pages_unlock();
}
