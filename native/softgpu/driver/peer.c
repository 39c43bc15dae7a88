#include "peer.h"

#include "arena.h"
#include "memory.h"
#include "pool.h"
#include "virtual.h"

/* All devices of a process share one address space, so any could use all memory.  As on
 * real ones, a kernel reaches another device's only when that was enabled: for
 * allocations and variables by cuCtxEnablePeerAccess, for pools by cuMemPoolSetAccess,
 * for mappings by cuMemSetAccess.  Managed and host memory is everybody's. */

/* Memory of no allocation that needs asking about is open in whole granules: arenas
 * and reserved addresses begin and end at one. */
static bool answer_granule(uint64_t address, uint64_t *base, uint64_t *bytes)
{
	*base = address / DRIVER_ARENA_GRANULE * DRIVER_ARENA_GRANULE;
	*bytes = DRIVER_ARENA_GRANULE;
	return true;
}

static bool is_peer(const struct CUctx_st *context, CUdevice ordinal)
{
	return __atomic_load_n(&context->peers, __ATOMIC_RELAXED) >> ordinal & 1;
}

/* Behind and before allocations of another device. */
static bool may_use_unknown(const struct CUctx_st *context, uint64_t address, uint64_t *base,
			    uint64_t *bytes)
{
	for (CUdevice ordinal = 0; ordinal < driver_device_count(); ordinal++) {
		const struct driver_device *device = driver_device_at(ordinal);

		if (!driver_arena_holds(device->arena, address))
			continue;
		*base = address / DRIVER_ARENA_ALIGN * DRIVER_ARENA_ALIGN;
		*bytes = DRIVER_ARENA_ALIGN;
		return device == context->device || is_peer(context, ordinal);
	}
	return answer_granule(address, base, bytes);
}

static bool may_use(void *opaque, uint64_t address, uint64_t *base, uint64_t *bytes)
{
	const struct CUctx_st *context = opaque;
	CUdevice own = context->device->ordinal;
	struct driver_allocation allocation;

	if (!driver_memory_find(address, &allocation))
		return may_use_unknown(context, address, base, bytes);
	*base = allocation.base;
	*bytes = allocation.size;
	switch (allocation.kind) {
	case DRIVER_MEMORY_VIRTUAL:
		return driver_virtual_may_access(address, own);
	case DRIVER_MEMORY_DEVICE:
	case DRIVER_MEMORY_MODULE:
		if (allocation.device == context->device)
			return true;
		return allocation.pool ? driver_pool_may_access(allocation.pool, own) :
					 is_peer(context, allocation.device->ordinal);
	default:
		return true;
	}
}

void driver_peer_reach(struct CUctx_st *context, struct engine_reach *reach)
{
	const struct driver_arena *arena = context->device->arena;

	*reach = (struct engine_reach){
		.own_base = driver_arena_base(arena), .own_bytes = driver_arena_span(arena),
		.may = may_use, .opaque = context,
	};
}
