/* barrier.c - bar.sync and its kind: they count threads (PTX ISA, "bar"). */
#include "launch.h"
#include "strict.h"

static uint32_t uniform_register(const struct warp *warp, int32_t slot)
{
	return ((const uint32_t *)(warp->registers + slot))[__builtin_ctz(warp->mask)];
}

static void complete_if_full(struct block *block, unsigned index)
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

void barrier_recheck(struct block *block)
{
	if (block->barriers_in_use >> CLUSTER_BARRIER)
		cluster_recheck(block);
	for (uint32_t rest = block->barriers_in_use & ((1u << BLOCK_BARRIERS) - 1); rest; rest &= rest - 1)
		complete_if_full(block, (unsigned)__builtin_ctz(rest));
}

const struct instruction *barrier_arrive(struct warp *warp, const struct instruction *instruction)
{
	struct block *block = warp->block;
	uint32_t index = instruction->x >= 0 ? (uint32_t)instruction->x
					     : uniform_register(warp, instruction->b);
	struct barrier *barrier;

	if (index >= BLOCK_BARRIERS)
		warp_fail(warp, ENGINE_LAUNCH_FAILED, "barrier %u (PTX line %u)", index,
			  instruction->line);
	barrier = &block->barriers[index];
	barrier->expected = instruction->c >= 0 ? uniform_register(warp, instruction->c)
						: (uint32_t)instruction->y;
	barrier->arrived += (uint32_t)__builtin_popcount(warp->mask);
	block->barriers_in_use |= 1u << index;
	if (block->strict)
		strict_barrier_arrive(block, warp->index, index);
	if (instruction->imm == BARRIER_REDUCE) {
		uint32_t predicate = *(const uint32_t *)(warp->registers + instruction->a);

		barrier->population += (uint32_t)__builtin_popcount(predicate & warp->mask);
	}
	if (instruction->imm == BARRIER_ARRIVE) {
		complete_if_full(block, index);
		return instruction + 1;
	}
	warp_add_fragment(warp, instruction + 1, warp->mask, warp->frame, FRAGMENT_AT_BARRIER,
			  index);
	complete_if_full(block, index);
	return warp_resume(warp);
}
