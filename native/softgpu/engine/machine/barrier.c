/* barrier.c - what barriers of blocks and of clusters have counted, and who goes on then. */
#include "strict.h"

void barrier_complete_if_full(struct block *block, unsigned index)
{
	struct barrier *barrier = &block->barriers[index];
	uint32_t expected = barrier->expected ? barrier->expected : block->live;

	if (!barrier->arrived || barrier->arrived < expected)
		return;
	barrier->result = barrier->population;
	barrier->result_threads = barrier->arrived;
	barrier->arrived = 0;
	barrier->population = 0;
	block->barriers_in_use &= ~(1u << index);
	if (block->strict)
		strict_barrier_complete(block, index);
	for (uint32_t w = 0; w < block->warp_count; w++) {
		struct warp *warp = &block->warps[w];

		for (uint32_t k = 0; k < warp->fragment_count; k++) {
			struct fragment *fragment = &warp->fragments[k];

			if (fragment->state == FRAGMENT_AT_BARRIER && fragment->barrier == index)
				fragment->state = FRAGMENT_READY;
		}
	}
}

/* ---- of clusters ---- */

static uint32_t live_threads(const struct cluster *cluster)
{
	uint32_t live = 0;

	for (uint32_t k = 0; k < cluster->count; k++)
		live += cluster->blocks[k]->live;
	return live;
}

static void release_waiting(struct block *block)
{
	block->barriers_in_use &= ~(1u << CLUSTER_BARRIER);
	for (uint32_t k = 0; k < block->warp_count; k++) {
		struct warp *warp = &block->warps[k];

		for (uint32_t f = 0; f < warp->fragment_count; f++)
			if (warp->fragments[f].state == FRAGMENT_AT_BARRIER &&
			    warp->fragments[f].barrier == CLUSTER_BARRIER)
				warp->fragments[f].state = FRAGMENT_READY;
	}
}

void cluster_recheck(struct block *block)
{
	struct cluster *cluster = block->cluster;

	if (!cluster->arrived || cluster->arrived < live_threads(cluster))
		return;
	cluster->arrived = 0;
	cluster->parity = ~cluster->parity;
	for (uint32_t k = 0; k < cluster->count; k++)
		release_waiting(cluster->blocks[k]);
}

/* ---- of both ---- */

void barrier_recheck(struct block *block)
{
	if (block->barriers_in_use >> CLUSTER_BARRIER)
		cluster_recheck(block);
	for (uint32_t rest = block->barriers_in_use & ((1u << BLOCK_BARRIERS) - 1); rest; rest &= rest - 1)
		barrier_complete_if_full(block, (unsigned)__builtin_ctz(rest));
}
