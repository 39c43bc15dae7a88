/* cluster.c - clusters of blocks: their barrier and their shared memory.
 *
 * The blocks of a cluster run interleaved on one thread, so nothing here needs
 * a lock.  In the 32-bit window .shared::cluster a block's own shared memory
 * lies where .shared has it; that of rank r begins at (r + 1) << WINDOW_BITS.
 */
#include "handler.h"

#include "../running.h"
#include "strict.h"

#define WINDOW_BITS 24		/* 16 MiB: far above the shared memory of a block */
#define WINDOW_MASK ((1u << WINDOW_BITS) - 1)

/* ---- barrier.cluster ---- */

HANDLER(cluster_arrive)
{
	struct cluster *cluster = w->block->cluster;

	w->cluster_parity = (w->cluster_parity & ~w->mask) | (cluster->parity & w->mask);
	if (w->block->strict)
		strict_sync(w);
	cluster->arrived += (u32)__builtin_popcount(w->mask);
	for (u32 k = 0; k < cluster->count; k++)
		cluster->blocks[k]->barriers_in_use |= 1u << CLUSTER_BARRIER;
	cluster_recheck(w->block);
	return i + 1;
}

/* Waiting lanes come here again when the phase is complete. */
HANDLER(cluster_wait)
{
	u32 passed = w->cluster_parity ^ w->block->cluster->parity;

	if (!(w->mask & ~passed)) {
		if (w->block->strict)
			strict_sync(w);
		return i + 1;
	}
	warp_add_fragment(w, i, w->mask, w->frame, FRAGMENT_AT_BARRIER, CLUSTER_BARRIER);
	return warp_resume(w);
}

/* ---- distributed shared memory ---- */

char *cluster_memory(struct warp *w, const struct instruction *i, uint32_t address, uint32_t bytes)
{
	const struct cluster *cluster = w->block->cluster;
	uint32_t rank = (address >> WINDOW_BITS) - 1, offset = address & WINDOW_MASK;

	if ((u64)address + bytes <= w->shared_bytes)
		return w->shared + address;
	if (rank >= cluster->count || (u64)offset + bytes > cluster->blocks[rank]->shared_bytes)
		warp_fail(w, ENGINE_LAUNCH_FAILED,
			  "shared memory access at %#x in a cluster of %u blocks with %#x bytes each "
			  "(PTX line %u)", address, cluster->count, w->shared_bytes, i->line);
	return cluster->blocks[rank]->shared + offset;
}

/* A pointer from an address of the window: x bytes there will be used. */
HANDLER(cluster_pointer)
{
	u64 *d = REGISTER(u64, i->dst);
	const u32 *a = REGISTER(u32, i->a);

	FOR_ACTIVE(w->mask, l)
	{
		u32 address = a[l] + (u32)i->imm;

		if (UNLIKELY(address & ((u32)i->x - 1) & w->alignment_checked))
			warp_fail(w, ENGINE_MISALIGNED, "misaligned address %#x (PTX line %u)",
				  address, i->line);
		d[l] = (u64)(uintptr_t)cluster_memory(w, i, address, (u32)i->x);
	}
	return i + 1;
}

static u32 window_address(const struct warp *w, u32 rank, u32 offset)
{
	return rank == w->block->rank ? offset : (rank + 1) << WINDOW_BITS | offset;
}

HANDLER(map_shared)
{
	u32 *d = REGISTER(u32, i->dst);
	const u32 *a = REGISTER(u32, i->a), *b = REGISTER(u32, i->b);

	FOR_ACTIVE(w->mask, l) d[l] = window_address(w, b[l], a[l] & WINDOW_MASK);
	return i + 1;
}

HANDLER(map_generic)
{
	u64 *d = REGISTER(u64, i->dst);
	const u64 *a = REGISTER(u64, i->a);
	const u32 *b = REGISTER(u32, i->b);
	const struct cluster *cluster = w->block->cluster;

	FOR_ACTIVE(w->mask, l)
	{
		const struct block *from = cluster_block_at(w, a[l]);

		if (!from || b[l] >= cluster->count)
			warp_fail(w, ENGINE_ILLEGAL_ADDRESS,
				  "mapa of %#llx to rank %u of %u (PTX line %u)",
				  (unsigned long long)a[l], b[l], cluster->count, i->line);
		d[l] = a[l] - (u64)(uintptr_t)from->shared +
		       (u64)(uintptr_t)cluster->blocks[b[l]]->shared;
	}
	return i + 1;
}

HANDLER(rank_shared)
{
	u32 *d = REGISTER(u32, i->dst);
	const u32 *a = REGISTER(u32, i->a);

	FOR_ACTIVE(w->mask, l)
	d[l] = a[l] >> WINDOW_BITS ? (a[l] >> WINDOW_BITS) - 1 : w->block->rank;
	return i + 1;
}

HANDLER(rank_generic)
{
	u32 *d = REGISTER(u32, i->dst);
	const u64 *a = REGISTER(u64, i->a);

	FOR_ACTIVE(w->mask, l)
	{
		const struct block *block = cluster_block_at(w, a[l]);

		if (!block)
			warp_fail(w, ENGINE_ILLEGAL_ADDRESS,
				  "getctarank of %#llx, which is not shared memory (PTX line %u)",
				  (unsigned long long)a[l], i->line);
		d[l] = block->rank;
	}
	return i + 1;
}

HANDLER(generic_to_window)
{
	u64 *d = REGISTER(u64, i->dst);
	const u64 *a = REGISTER(u64, i->a);

	FOR_ACTIVE(w->mask, l)
	{
		const struct block *block = cluster_block_at(w, a[l]);

		if (!block)
			block = w->block;
		d[l] = window_address(w, block->rank, (u32)(a[l] - (u64)(uintptr_t)block->shared));
	}
	return i + 1;
}

HANDLER(is_in_cluster)
{
	const u64 *a = REGISTER(u64, i->a);
	u32 result = 0;

	FOR_ACTIVE(w->mask, l) result |= (u32)(cluster_block_at(w, a[l]) != NULL) << l;
	SET_PREDICATE(i->dst, result);
	return i + 1;
}

static const struct form forms[] = {
	{ "barrier.cluster.arrive", NULL, cluster_arrive, NULL, 0, true },
	{ "barrier.cluster.wait", NULL, cluster_wait, NULL, 0, true },
	{ "mapa.u64", NULL, map_generic, NULL, 0, false },
	{ "mapa.shared::cluster.u32 mapa.shared::cluster.u64", NULL, map_shared, NULL, 0, false },
	{ "getctarank.u64", NULL, rank_generic, NULL, 0, false },
	{ "getctarank.shared::cluster.u32 getctarank.shared::cluster.u64", NULL, rank_shared, NULL,
	  0, false },
	{ "@cluster_pointer", NULL, cluster_pointer, NULL, 0, false },
	{ "@generic_to_window", NULL, generic_to_window, NULL, 0, false },
	{ "@is_in_cluster", NULL, is_in_cluster, NULL, 0, false },
};

const struct form_table forms_cluster = { forms, sizeof(forms) / sizeof(forms[0]) };
