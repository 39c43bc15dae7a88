/* warpgroup.c - where the four warps of a warpgroup meet. */
#include "warpgroup.h"

#include <stdlib.h>
#include <string.h>

#include "strict.h"

#define NOT_A_NUMBER 0x7fffffffu	/* as f32, and in both halves as f16 */

/* What one wgmma has computed for a warp. */
struct warpgroup_results {
	struct warpgroup_results *next;
	const struct warpgroup_product *product;
	const struct engine_function *function;
	char *registers;		/* its window */
	uint32_t number;		/* of the group that it belongs to */
	uint32_t values[WARPGROUP_RESULTS_MAX][WARP_LANES];
};

static const struct fragment *waiting_at_wgmma(const struct warp *warp)
{
	const struct fragment *fragment = &warp->fragments[0];

	return warp->fragment_count == 1 && fragment->state == FRAGMENT_AT_BARRIER &&
			       fragment->barrier == WARPGROUP_BARRIER
		       ? fragment
		       : NULL;
}

bool warpgroup_meet(struct warp *warp, const struct instruction *instruction, struct warpgroup *group,
		    const struct instruction **next)
{
	struct block *block = warp->block;
	uint32_t first = warp->index / WARPGROUP_WARPS * WARPGROUP_WARPS;
	bool are_all_here = true;

	if (warp->mask != ~0u || first + WARPGROUP_WARPS > block->warp_count)
		warp_fail(warp, ENGINE_LAUNCH_FAILED,
			  "wgmma needs all threads of four warps, the first of which has a multiple of four as its "
			  "number (PTX line %u)", instruction->line);
	for (unsigned k = 0; k < WARPGROUP_WARPS; k++) {
		struct warp *other = &block->warps[first + k];
		const struct fragment *fragment = waiting_at_wgmma(other);

		group->warps[k] = other;
		group->registers[k] = other == warp ? warp->registers : fragment ? fragment->frame->registers : NULL;
		if (fragment && fragment->ip != instruction)
			warp_fail(warp, ENGINE_LAUNCH_FAILED,
				  "warps of a warpgroup stand at different wgmma (PTX lines %u and %u)",
				  fragment->ip->line, instruction->line);
		are_all_here = are_all_here && group->registers[k];
	}
	if (are_all_here)
		return true;
	warp_add_fragment(warp, instruction, warp->mask, warp->frame, FRAGMENT_AT_BARRIER, WARPGROUP_BARRIER);
	*next = warp_resume(warp);
	return false;
}

void warpgroup_part(struct warp *warp, const struct warpgroup *group)
{
	for (unsigned k = 0; k < WARPGROUP_WARPS; k++) {
		struct fragment *fragment = &group->warps[k]->fragments[0];

		if (group->warps[k] == warp)
			continue;
		fragment->state = FRAGMENT_READY;
		fragment->ip++;
	}
}

/* ---- results that nothing has waited for ---- */

static void results_give(const struct warpgroup_results *results)
{
	const struct warpgroup_product *product = results->product;

	for (uint32_t k = 0; k < product->result_count; k++)
		memcpy(results->registers + product->results[k], results->values[k], sizeof(results->values[k]));
}

static bool are_the_same_registers(const struct warpgroup_product *one, const struct warpgroup_product *other)
{
	return one->result_count == other->result_count &&
	       !memcmp(one->results, other->results, one->result_count * sizeof(one->results[0]));
}

void warpgroup_hold(const struct warpgroup *group, const struct warpgroup_product *product)
{
	for (unsigned w = 0; w < WARPGROUP_WARPS; w++) {
		struct warp *warp = group->warps[w];
		struct warpgroup_results *results = malloc(sizeof(*results));

		if (!results)
			continue;
		results->product = product;
		results->function = warp->frame->function;
		results->registers = group->registers[w];
		results->number = strict_group_number(warp);
		for (uint32_t k = 0; k < product->result_count; k++) {
			uint32_t *values = (uint32_t *)(results->registers + product->results[k]);

			memcpy(results->values[k], values, sizeof(results->values[k]));
			for (unsigned lane = 0; lane < WARP_LANES; lane++)
				values[lane] = NOT_A_NUMBER;
		}
		results->next = warp->unfinished;
		warp->unfinished = results;
	}
}

void warpgroup_take_back(const struct warpgroup *group, const struct warpgroup_product *product)
{
	for (unsigned w = 0; w < WARPGROUP_WARPS; w++) {
		struct warpgroup_results **at = &group->warps[w]->unfinished, *results;

		while ((results = *at)) {
			if (results->registers != group->registers[w] ||
			    !are_the_same_registers(results->product, product)) {
				at = &results->next;
				continue;
			}
			results_give(results);
			*at = results->next;
			free(results);
		}
	}
}

/* The function that has these registers may have returned. */
static bool registers_are_there(const struct warp *warp, const struct warpgroup_results *results)
{
	for (const struct frame *frame = warp->frame; frame; frame = frame->caller)
		if (frame->registers == results->registers && frame->function == results->function)
			return true;
	return false;
}

void warpgroup_release(struct warp *warp, uint32_t number)
{
	struct warpgroup_results **at = &warp->unfinished, *results;

	while ((results = *at)) {
		if (results->number > number) {
			at = &results->next;
			continue;
		}
		if (registers_are_there(warp, results))
			results_give(results);
		*at = results->next;
		free(results);
	}
}

void warpgroup_forget(struct warp *warp)
{
	while (warp->unfinished) {
		struct warpgroup_results *next = warp->unfinished->next;

		free(warp->unfinished);
		warp->unfinished = next;
	}
}
