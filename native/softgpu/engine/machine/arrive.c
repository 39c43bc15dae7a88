/* arrive.c - bar.sync and its kind: a warp comes to a barrier, which counts threads (PTX ISA, "bar"). */
#include "strict.h"
#include "state.h"

static uint32_t uniform_register(const struct warp *warp, int32_t slot)
{
	return ((const uint32_t *)(warp->registers + slot))[__builtin_ctz(warp->mask)];
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
		barrier_complete_if_full(block, index);
		return instruction + 1;
	}
	warp_add_fragment(warp, instruction + 1, warp->mask, warp->frame, FRAGMENT_AT_BARRIER,
			  index);
	barrier_complete_if_full(block, index);
	return warp_resume(warp);
}
