/* collective.c - operations across lanes whose members do not all stand at one instruction.
 *
 * Who belongs together is said by the member mask, not by the place in the
 * code: lanes of one instruction may name different masks (the tiles of
 * cooperative groups), and lanes of one mask may stand at different copies of
 * an operation, because the compiler unrolled a loop that they leave at
 * different times or because a function was called from two places.
 *
 * A group of lanes with one mask proceeds when all of the mask that live have
 * come to an operation of the same kind with the same mask.  The others wait
 * (FRAGMENT_AT_WARP_SYNC) and look again when a lane has exited.
 */
#include <string.h>

#include "state.h"

/* A window that holds nothing but the operands of one operation. */
enum {
	WINDOW_DST = 0,
	WINDOW_A = WARP_LANES * 8,
	WINDOW_B = WINDOW_A + WARP_LANES * 8,
	WINDOW_C = WINDOW_B + WARP_LANES * 8,
	WINDOW_MEMBERS = WINDOW_C + WARP_LANES * 8,
	WINDOW_SECOND = WINDOW_MEMBERS + WARP_LANES * 8,
	WINDOW_BYTES = WINDOW_SECOND + 64,
};

static const struct instruction window_slots = {
	.dst = WINDOW_DST, .a = WINDOW_A, .b = WINDOW_B, .c = WINDOW_C, .y = WINDOW_MEMBERS,
	.imm = WINDOW_SECOND,
};

static int32_t slot_of(const struct instruction *instruction, char operand)
{
	switch (operand) {
	case 'a': return instruction->a;
	case 'b': return instruction->b;
	case 'c': return instruction->c;
	case 'y': return instruction->y;
	default: return instruction->dst;
	}
}

static void copy_predicate(char *to, const char *from, uint32_t lanes)
{
	uint32_t new, old;

	memcpy(&new, from, sizeof(new));
	memcpy(&old, to, sizeof(old));
	new = (old & ~lanes) | (new & lanes);
	memcpy(to, &new, sizeof(new));
}

/* Copy what `operands` (see struct form) names between a register window and
 * the one above: the sources into it, or the results out of it. */
static void copy_operands(const char *operands, bool in, char *window, char *registers,
			  const struct instruction *instruction, uint32_t lanes)
{
	for (const char *word = operands; *word; word += word[2] ? 3 : 2) {
		char *inside = window + slot_of(&window_slots, word[0]);
		char *outside = registers + slot_of(instruction, word[0]);
		char *to = in ? inside : outside;
		const char *from = in ? outside : inside;

		if ((word[0] == 'd') == in)
			continue;
		if (word[1] == 'p') {
			copy_predicate(to, from, lanes);
			continue;
		}
		for (uint32_t rest = lanes; rest; rest &= rest - 1) {
			size_t at = (size_t)__builtin_ctz(rest) * (size_t)(word[1] - '0');

			memcpy(to + at, from + at, (size_t)(word[1] - '0'));
		}
	}
	if (!in && instruction->imm >= 0)
		copy_predicate(registers + instruction->imm, window + WINDOW_SECOND, lanes);
}

/* The lanes of `lanes` that name `members`. */
static uint32_t lanes_naming(uint32_t members, const char *registers,
			     const struct instruction *instruction, uint32_t lanes)
{
	const uint32_t *named = (const uint32_t *)(registers + instruction->y);
	uint32_t found = 0;

	for (uint32_t rest = lanes; rest; rest &= rest - 1) {
		unsigned lane = (unsigned)__builtin_ctz(rest);

		found |= (uint32_t)(named[lane] == members) << lane;
	}
	return found;
}

/* The lanes of a fragment that wait for the same operation of the same members. */
static uint32_t lanes_waiting(uint32_t members, const struct fragment *fragment,
			      const struct instruction *instruction)
{
	if (fragment->state != FRAGMENT_AT_WARP_SYNC || fragment->ip->run != instruction->run)
		return 0;
	return lanes_naming(members, fragment->frame->registers, fragment->ip, fragment->mask);
}

/* They have done what they waited for. */
static void release(struct warp *warp, struct fragment *fragment, uint32_t lanes)
{
	if (lanes == fragment->mask) {
		fragment->state = FRAGMENT_READY;
		fragment->ip++;
		return;
	}
	fragment->mask &= ~lanes;
	fragment->frame->references++;
	warp_add_fragment(warp, fragment->ip + 1, lanes, fragment->frame, FRAGMENT_READY, 0);
}

/* Execute for `group`, which stands at `instruction`, and for `others`, which wait elsewhere. */
static void run_together(struct warp *warp, const struct instruction *instruction, uint32_t members,
			 uint32_t group, uint32_t others, collective_fn run, const char *operands)
{
	char window[WINDOW_BYTES] __attribute__((aligned(64))) = { 0 };
	char *registers = warp->registers;
	uint32_t count = warp->fragment_count;

	copy_operands(operands, true, window, registers, instruction, group);
	for (uint32_t k = 0; k < count; k++) {
		const struct fragment *fragment = &warp->fragments[k];
		uint32_t lanes = lanes_waiting(members, fragment, instruction);

		/* Others stand at instructions that may lack these operands. */
		if (lanes)
			copy_operands(operands, true, window, fragment->frame->registers,
				      fragment->ip, lanes);
	}
	warp->registers = window;
	warp->mask = group | others;
	run(warp, &window_slots, members);
	warp->registers = registers;
	copy_operands(operands, false, window, registers, instruction, group);
	for (uint32_t k = 0; k < count; k++) {
		struct fragment *fragment = &warp->fragments[k];
		uint32_t lanes = lanes_waiting(members, fragment, instruction);

		if (!lanes)
			continue;
		copy_operands(operands, false, window, fragment->frame->registers, fragment->ip,
			      lanes);
		release(warp, fragment, lanes);
	}
}

const struct instruction *warp_collective(struct warp *warp, const struct instruction *instruction,
					  collective_fn run, const char *operands)
{
	const uint32_t *named = (const uint32_t *)(warp->registers + instruction->y);
	uint32_t completed = 0, waiting = 0;
	bool forced = warp->force_sync;

	warp->force_sync = false;
	warp_join_same_place(warp, instruction);
	for (uint32_t rest = warp->mask, group; rest; rest &= ~group) {
		uint32_t members = named[__builtin_ctz(rest)], others = 0;

		group = lanes_naming(members, warp->registers, instruction, rest);
		for (uint32_t k = 0; k < warp->fragment_count; k++)
			others |= lanes_waiting(members, &warp->fragments[k], instruction);
		if (!forced && (members & warp->live & ~(group | others))) {
			waiting |= group;
			continue;
		}
		completed |= group;
		warp->mask = group;
		if (others)
			run_together(warp, instruction, members, group, others, run, operands);
		else
			run(warp, instruction, members);
	}
	if (waiting) {
		if (completed)
			warp->frame->references++;
		warp_add_fragment(warp, instruction, waiting, warp->frame, FRAGMENT_AT_WARP_SYNC, 0);
		if (!completed)
			return warp_resume(warp);
	}
	warp->mask = completed;
	warp_find_merge_point(warp);
	return instruction + 1;
}
