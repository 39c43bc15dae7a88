/* warp.c - fragments of a warp: divergence, merging, calls, waiting. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../running.h"

#define MERGE_NOWHERE ((const struct instruction *)UINTPTR_MAX)

/* ---- frames ---- */

static struct frame *frame_take(struct warp *warp)
{
	struct frame *frame = warp->free_frames;

	if (frame) {
		warp->free_frames = frame->caller;
		return frame;
	}
	frame = malloc(sizeof(*frame));
	if (!frame)
		warp_fail(warp, ENGINE_NO_MEMORY, "out of memory for call frames");
	frame->next_owned = warp->owned_frames;
	warp->owned_frames = frame;
	return frame;
}

void warp_reclaim_frames(struct warp *warp)
{
	warp->free_frames = NULL;
	for (struct frame *frame = warp->owned_frames; frame; frame = frame->next_owned) {
		frame->caller = warp->free_frames;
		warp->free_frames = frame;
	}
}

/* A window is free when all above it are: frames mostly end in the order of a
 * stack, and where fragments take turns the holes close a little later. */
static void close_windows(struct warp *warp)
{
	struct frame *top = warp->top_window;

	while (!top->references && top != &warp->root) {
		struct frame *below = top->below;

		top->caller = warp->free_frames;
		warp->free_frames = top;
		top = below;
	}
	warp->top_window = top;
}

static void frame_drop(struct warp *warp, struct frame *frame)
{
	while (frame && --frame->references == 0)
		frame = frame->caller;
	if (!warp->top_window->references)
		close_windows(warp);
}

static void set_constant(const struct constant *constant, char *at, uint32_t mask)
{
	uint64_t value = constant->value;

	if (!constant->bytes) {
		uint32_t *predicate = (uint32_t *)at;

		*predicate = (*predicate & ~mask) | (value ? mask : 0);
		return;
	}
	for (unsigned lane = 0; lane < WARP_LANES; lane++) {
		if (!(mask >> lane & 1))
			continue;
		memcpy(at + lane * constant->bytes, &value, constant->bytes);
	}
}

void frame_set_constants(const struct engine_function *function, char *registers, uint32_t mask)
{
	for (size_t k = 0; k < function->constant_count; k++)
		set_constant(&function->constants[k], registers + function->constants[k].slot,
			     mask);
}

/* ---- fragments ---- */

bool warp_is_ready(const struct warp *warp)
{
	for (uint32_t k = 0; k < warp->fragment_count; k++)
		if (warp->fragments[k].state != FRAGMENT_AT_BARRIER)
			return true;
	return false;
}

void warp_add_fragment(struct warp *warp, const struct instruction *ip, uint32_t mask,
		       struct frame *frame, enum fragment_state state, unsigned barrier)
{
	/* Fragments are disjoint and not empty: there are never more than lanes. */
	warp->fragments[warp->fragment_count++] = (struct fragment){
		.ip = ip, .frame = frame, .mask = mask, .state = (uint8_t)state,
		.barrier = (uint8_t)barrier, .last_turn = warp->turn,
	};
}

static void remove_fragment(struct warp *warp, uint32_t index)
{
	warp->fragments[index] = warp->fragments[--warp->fragment_count];
}

void warp_set_kernel(struct warp *warp, const struct engine_function *kernel)
{
	warp->root = (struct frame){ .function = kernel, .registers = warp->register_base };
}

void warp_start(struct warp *warp, uint32_t live)
{
	struct frame *root = &warp->root;

	root->references = 1;
	warp->top_window = root;
	warp->live = live;
	warp->frame = root;
	warp->turn = 0;
	warp->cluster_parity = 0;
	warp->reach_bytes = 0;
	warp->force_sync = warp->rotate = warp->preempted = false;
	warp->fragment_count = 0;
	warp_add_fragment(warp, root->function->code, live, root, FRAGMENT_READY, 0);
}

static void enter_frame(struct warp *warp, struct frame *frame)
{
	warp->frame = frame;
	warp->registers = frame->registers;
	warp->local_offset = frame->local_offset;
}

/* A fragment that runs because it was starved is not stopped for merging. */
static void find_merge_point(struct warp *warp, bool starved)
{
	const struct instruction *lowest = MERGE_NOWHERE;

	for (uint32_t k = 0; k < warp->fragment_count && !starved; k++) {
		const struct fragment *fragment = &warp->fragments[k];

		if (fragment->state == FRAGMENT_READY && fragment->frame == warp->frame &&
		    fragment->ip < lowest)
			lowest = fragment->ip;
	}
	warp->merge_at = lowest;
}

static bool runs_before(const struct fragment *a, const struct fragment *b, bool rotate)
{
	if (rotate)
		return a->last_turn < b->last_turn;
	if (a->frame->depth != b->frame->depth)
		return a->frame->depth > b->frame->depth;
	return a->ip < b->ip;
}

static struct fragment *next_fragment(struct warp *warp, bool rotate)
{
	struct fragment *best = NULL;

	for (uint32_t k = 0; k < warp->fragment_count; k++) {
		struct fragment *fragment = &warp->fragments[k];

		if (fragment->state == FRAGMENT_READY &&
		    (!best || runs_before(fragment, best, rotate)))
			best = fragment;
	}
	if (best)
		return best;
	/* Nothing can run: lanes that a warp-wide operation waits for will never
	 * come (they exited or wait at a barrier), so it proceeds without them. */
	for (uint32_t k = 0; k < warp->fragment_count; k++) {
		if (warp->fragments[k].state == FRAGMENT_AT_WARP_SYNC) {
			warp->force_sync = true;
			return &warp->fragments[k];
		}
	}
	return NULL;
}

/* Take up the next fragment; NULL when all of them wait. */
const struct instruction *warp_resume(struct warp *warp)
{
	bool rotate = warp->rotate;
	struct fragment *next;
	struct fragment current;

	warp->rotate = false;
	warp->turn++;
	if (warp->fragment_count == 1 && warp->fragments[0].state == FRAGMENT_READY) {
		warp->fragment_count = 0;
		warp->mask = warp->fragments[0].mask;
		enter_frame(warp, warp->fragments[0].frame);
		warp->merge_at = MERGE_NOWHERE;
		return warp->fragments[0].ip;
	}
	next = next_fragment(warp, rotate);
	if (!next)
		return NULL;
	current = *next;
	remove_fragment(warp, (uint32_t)(next - warp->fragments));
	for (uint32_t k = 0; k < warp->fragment_count;) {
		struct fragment *other = &warp->fragments[k];

		if (other->ip == current.ip && other->frame == current.frame &&
		    other->state != FRAGMENT_AT_BARRIER) {
			current.mask |= other->mask;
			frame_drop(warp, other->frame);
			remove_fragment(warp, k);
		} else {
			k++;
		}
	}
	warp->mask = current.mask;
	enter_frame(warp, current.frame);
	find_merge_point(warp, rotate);
	return current.ip;
}

const struct instruction *warp_merge(struct warp *warp, const struct instruction *label)
{
	warp_add_fragment(warp, label, warp->mask, warp->frame, FRAGMENT_READY, 0);
	return warp_resume(warp);
}

const struct instruction *warp_preempt(struct warp *warp, const struct instruction *next)
{
	warp_add_fragment(warp, next, warp->mask, warp->frame, FRAGMENT_READY, 0);
	warp->preempted = true;
	warp->rotate = true;
	return NULL;
}

/* A branch that only some lanes take: go on with the lower address. */
const struct instruction *warp_split(struct warp *warp, const struct instruction *branch,
				     uint32_t taken)
{
	const struct instruction *target = branch->target, *next = branch + 1;
	uint32_t rest = warp->mask & ~taken;

	warp->frame->references++;
	if (target < next) {
		warp_add_fragment(warp, next, rest, warp->frame, FRAGMENT_READY, 0);
		warp->mask = taken;
		if (next < warp->merge_at)
			warp->merge_at = next;
		if (--warp->fuel <= 0)
			return warp_preempt(warp, target);
		return target;
	}
	warp_add_fragment(warp, target, taken, warp->frame, FRAGMENT_READY, 0);
	warp->mask = rest;
	if (target < warp->merge_at)
		warp->merge_at = target;
	return next;
}

static uint32_t lanes_with_value(const void *registers, unsigned bytes, uint32_t mask,
				 unsigned lane)
{
	const char *values = registers;
	uint32_t same = 0;

	for (unsigned k = 0; k < WARP_LANES; k++)
		if ((mask >> k & 1) && !memcmp(values + k * bytes, values + lane * bytes, bytes))
			same |= 1u << k;
	return same;
}

const struct instruction *warp_jump(struct warp *warp, const struct instruction *jump)
{
	const struct jump_table *table = jump->target;
	const uint32_t *indices = (const uint32_t *)(warp->registers + jump->a);
	uint32_t rest = warp->mask;

	warp->frame->references--;
	while (rest) {
		unsigned lane = (unsigned)__builtin_ctz(rest);
		uint32_t same = lanes_with_value(indices, 4, rest, lane);

		if (indices[lane] >= table->count)
			warp_fail(warp, ENGINE_LAUNCH_FAILED, "brx.idx %u of %u (PTX line %u)",
				  indices[lane], table->count, jump->line);
		warp_add_fragment(warp, table->targets[indices[lane]], same, warp->frame,
				  FRAGMENT_READY, 0);
		warp->frame->references++;
		rest &= ~same;
	}
	if (--warp->fuel <= 0) {
		warp->preempted = true;
		warp->rotate = true;
		return NULL;
	}
	return warp_resume(warp);
}

/* ---- calls ---- */

static void copy_arguments(struct warp *warp, const struct call_site *site,
			   const struct engine_function *callee, size_t from, size_t to)
{
	size_t count = site->argument_count < callee->parameter_count ? site->argument_count
								      : callee->parameter_count;

	for (size_t k = 0; k < count; k++) {
		const struct call_argument *argument = &site->arguments[k];
		const struct parameter *parameter = &callee->parameters[k];
		size_t bytes = argument->bytes < parameter->size ? argument->bytes : parameter->size;

		for (uint32_t rest = warp->mask; rest; rest &= rest - 1) {
			char *lane = warp->local + (size_t)__builtin_ctz(rest) * warp->local_stride;

			memcpy(lane + to + parameter->offset, lane + from + argument->offset, bytes);
		}
	}
}

const struct instruction *warp_call(struct warp *warp, const struct instruction *call,
				    struct engine_function *callee)
{
	struct frame *caller = warp->frame;
	struct frame *frame;

	if (callee->status != ENGINE_OK || !callee->is_defined)
		warp_fail(warp, ENGINE_UNSUPPORTED, "call of %s, which cannot run: %s (PTX line %u)",
			  callee->name, callee->unsupported ? callee->unsupported : "no body",
			  call->line);
	/* Recursion without loops must end its turn too. */
	if (--warp->fuel <= 0)
		return warp_preempt(warp, call);
	frame = frame_take(warp);
	*frame = (struct frame){
		.caller = caller,	/* takes over this fragment's reference */
		.return_to = call + 1,
		.site = call->target,
		.function = callee,
		.registers = warp->top_window->registers + warp->top_window->function->frame_bytes,
		.below = warp->top_window,
		.local_offset = (caller->local_offset + caller->function->local_bytes + callee->local_align - 1) &
				~(size_t)(callee->local_align - 1),
		.depth = caller->depth + 1,
		.references = 1,
		.next_owned = frame->next_owned,
	};
	if (frame->depth > CALL_DEPTH_MAX ||
	    frame->registers + callee->frame_bytes > warp->register_base + warp->register_bytes ||
	    frame->local_offset + callee->local_bytes > warp->local_stride)
		warp_fail(warp, ENGINE_LAUNCH_FAILED, "stack overflow: %u calls deep at %s",
			  frame->depth, callee->name);
	warp->top_window = frame;
	copy_arguments(warp, frame->site, callee, caller->local_offset, frame->local_offset);
	enter_frame(warp, frame);
	frame_set_constants(callee, frame->registers, warp->mask);
	warp->merge_at = MERGE_NOWHERE;
	return callee->code;
}

/* Lanes may hold different functions: those with the first lane's go now. */
const struct instruction *warp_call_indirect(struct warp *warp, const struct instruction *call)
{
	const uint64_t *pointers = (const uint64_t *)(warp->registers + call->a);
	unsigned lane = (unsigned)__builtin_ctz(warp->mask);
	struct engine_function *callee = (struct engine_function *)(uintptr_t)pointers[lane];
	const struct engine_module *module = warp->frame->function->module;
	uint32_t same = lanes_with_value(pointers, 8, warp->mask, lane);
	bool known = false;

	for (size_t k = 0; k < module->function_count && !known; k++)
		known = module->functions[k] == callee;
	if (!known)
		warp_fail(warp, ENGINE_ILLEGAL_ADDRESS,
			  "call through %#llx, which is no function (PTX line %u)",
			  (unsigned long long)pointers[lane], call->line);
	if (same != warp->mask) {
		warp->frame->references++;
		warp_add_fragment(warp, call, warp->mask & ~same, warp->frame, FRAGMENT_READY, 0);
		warp->mask = same;
	}
	if (callee->builtin) {
		const struct instruction *next = callee->builtin(warp, call);

		if (!warp->fragment_count)
			return next;
		return warp_merge(warp, next);
	}
	return warp_call(warp, call, callee);
}

/* Operations that waited for lanes that have exited may be complete. */
static void wake_waiting(struct warp *warp)
{
	for (uint32_t k = 0; k < warp->fragment_count; k++)
		if (warp->fragments[k].state == FRAGMENT_AT_WARP_SYNC)
			warp->fragments[k].state = FRAGMENT_READY;
}

const struct instruction *warp_exit(struct warp *warp)
{
	warp->live &= ~warp->mask;
	/* Mostly whole warps; without popcnt in the instruction set, counting is a call. */
	warp->block->live -= warp->mask == UINT32_MAX ? 32 : (uint32_t)__builtin_popcount(warp->mask);
	frame_drop(warp, warp->frame);
	wake_waiting(warp);
	if (warp->block->barriers_in_use)
		barrier_recheck(warp->block);
	return warp->fragment_count ? warp_resume(warp) : NULL;
}

const struct instruction *warp_return(struct warp *warp)
{
	struct frame *frame = warp->frame, *caller = frame->caller;
	const struct instruction *next = frame->return_to;
	const struct engine_function *callee = frame->function;
	const struct call_site *site = frame->site;

	if (!caller)
		return warp_exit(warp);
	if (site->has_result && callee->has_result) {
		size_t bytes = site->result.bytes < callee->result.size ? site->result.bytes
									: callee->result.size;

		for (uint32_t rest = warp->mask; rest; rest &= rest - 1) {
			char *lane = warp->local + (size_t)__builtin_ctz(rest) * warp->local_stride;

			memcpy(lane + caller->local_offset + site->result.offset,
			       lane + frame->local_offset + callee->result.offset, bytes);
		}
	}
	caller->references++;
	frame_drop(warp, frame);
	enter_frame(warp, caller);
	if (!warp->fragment_count) {
		warp->merge_at = MERGE_NOWHERE;
		return next;
	}
	return warp_merge(warp, next);
}

/* ---- warp-wide operations ---- */

void warp_find_merge_point(struct warp *warp)
{
	find_merge_point(warp, false);
}

void warp_join_same_place(struct warp *warp, const struct instruction *instruction)
{
	for (uint32_t k = 0; k < warp->fragment_count;) {
		struct fragment *other = &warp->fragments[k];

		if (other->ip == instruction && other->frame == warp->frame &&
		    other->state != FRAGMENT_AT_BARRIER) {
			warp->mask |= other->mask;
			frame_drop(warp, other->frame);
			remove_fragment(warp, k);
		} else {
			k++;
		}
	}
}

bool warp_sync(struct warp *warp, const struct instruction *instruction, uint32_t lanes,
	       const struct instruction **next)
{
	uint32_t coming = 0;

	if (!(lanes & warp->live & ~warp->mask) || !warp->fragment_count)
		return true;
	warp_join_same_place(warp, instruction);
	if (!(lanes & warp->live & ~warp->mask) || warp->force_sync) {
		warp->force_sync = false;
		find_merge_point(warp, false);
		return true;
	}
	for (uint32_t k = 0; k < warp->fragment_count; k++)
		if (warp->fragments[k].state == FRAGMENT_READY)
			coming |= warp->fragments[k].mask;
	if (!(coming & lanes))
		return true;
	warp_add_fragment(warp, instruction, warp->mask, warp->frame, FRAGMENT_AT_WARP_SYNC, 0);
	*next = warp_resume(warp);
	return false;
}
