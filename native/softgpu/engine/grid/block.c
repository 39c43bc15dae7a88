/* block.c - blocks of a grid on one thread: memory, turns of warps, errors.
 *
 * An ordinary block is run to its end.  Those of a gang take turns (gang.c).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../clock.h"
#include "../running.h"
#include "../machine/strict.h"
#include "../machine/warpgroup.h"

/* While no helper has been called the turns are short, so that a long first
 * block does not keep the others waiting. */
#define FUEL_BEFORE_HELPERS 64
#define SLOT_BYTES_KEPT ((size_t)1 << 30)	/* of address space, in an idle slot */
#define MEMBERS_KEPT 64				/* blocks of a gang, in an idle slot */

/* ---- memory ---- */

void slot_release(struct slot *slot)
{
	gang_release(slot);
	strict_block_free(slot->block.strict);
	slot->block.strict = NULL;
	for (uint32_t k = 0; k < slot->warp_capacity; k++) {
		struct frame *frame = slot->warps[k].owned_frames;

		warpgroup_forget(&slot->warps[k]);
		while (frame) {
			struct frame *next = frame->next_owned;

			free(frame);
			frame = next;
		}
	}
	if (slot->memory)
		munmap(slot->memory, slot->memory_bytes);
	free(slot->warps);
	slot->memory = NULL;
	slot->memory_bytes = 0;
	slot->warps = NULL;
	slot->warp_capacity = 0;
	slot->block.warp_count = 0;
	slot->prepared_function = NULL;
}

static bool reserve_warps(struct slot *slot, uint32_t count)
{
	struct warp *warps;

	if (slot->warp_capacity >= count)
		return true;
	slot_release(slot);
	warps = aligned_alloc(64, count * sizeof(*warps));
	if (!warps)
		return false;
	memset(warps, 0, count * sizeof(*warps));
	slot->warps = warps;
	slot->warp_capacity = count;
	return true;
}

static bool reserve_memory(struct slot *slot, size_t bytes)
{
	char *memory;

	if (slot->memory_bytes >= bytes && slot->memory_bytes <= SLOT_BYTES_KEPT)
		return true;
	if (slot->memory)
		munmap(slot->memory, slot->memory_bytes);
	slot->memory = NULL;
	slot->memory_bytes = 0;
	/* Reserved only: a kernel touches what it uses of its stacks. */
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return false;
	slot->memory = memory;
	slot->memory_bytes = bytes;
	return true;
}

static bool is_prepared(const struct slot *slot, const struct launch *launch)
{
	return slot->prepared_function == launch->function &&
	       slot->prepared_generation == launch->function->module->generation &&
	       slot->prepared_shared_bytes == launch->shared_bytes &&
	       slot->prepared_local_stride == launch->local_stride &&
	       slot->prepared_register_bytes == launch->register_bytes &&
	       !memcmp(slot->prepared_block, launch->request->block, sizeof(slot->prepared_block));
}

static void set_thread_indices(struct warp *warp, const uint32_t block[3])
{
	for (unsigned lane = 0; lane < WARP_LANES; lane++) {
		uint32_t thread = warp->index * WARP_LANES + lane;

		warp->thread_index[0][lane] = thread % block[0];
		warp->thread_index[1][lane] = thread / block[0] % block[1];
		warp->thread_index[2][lane] = thread / (block[0] * block[1]);
	}
}

static void lay_out(struct slot *slot, const struct launch *launch, size_t shared_room,
		    size_t warp_room)
{
	struct block *block = &slot->block;

	block->shared = slot->memory;
	for (uint32_t k = 0; k < launch->warps_per_block; k++) {
		struct warp *warp = &slot->warps[k];

		warp->index = k;
		warp->block = block;
		warp->shared = block->shared;
		warp->shared_bytes = launch->shared_bytes;
		warp->alignment_checked = pool_options.strict ? ~0u : 0;
		warp->register_base = slot->memory + shared_room + k * warp_room;
		warp->register_bytes = launch->register_bytes;
		warp->local = warp->register_base + launch->register_bytes;
		warp->local_stride = launch->local_stride;
		warp_set_kernel(warp, launch->function);
		frame_set_constants(launch->function, warp->register_base, ~0u);
		set_thread_indices(warp, launch->request->block);
	}
	slot->prepared_function = launch->function;
	slot->prepared_generation = launch->function->module->generation;
	slot->prepared_shared_bytes = launch->shared_bytes;
	slot->prepared_local_stride = launch->local_stride;
	slot->prepared_register_bytes = launch->register_bytes;
	memcpy(slot->prepared_block, launch->request->block, sizeof(slot->prepared_block));
}

bool slot_prepare_block(struct slot *slot, const struct launch *launch)
{
	size_t shared_room = ((size_t)launch->shared_bytes + 4095) & ~(size_t)4095;
	size_t warp_room = launch->register_bytes + (size_t)launch->local_stride * WARP_LANES;
	size_t total = shared_room + launch->warps_per_block * warp_room + 4096;
	struct block *block = &slot->block;

	if (!is_prepared(slot, launch)) {
		slot->prepared_function = NULL;
		if (!reserve_warps(slot, launch->warps_per_block) || !reserve_memory(slot, total))
			return false;
		lay_out(slot, launch, shared_room, warp_room);
		strict_block_free(block->strict);
		block->strict = NULL;
		if (pool_options.strict && !(block->strict = strict_block_make(launch->shared_bytes)))
			return false;
	}
	block->warps = slot->warps;
	block->warp_count = launch->warps_per_block;
	block->shared_bytes = launch->shared_bytes;
	block->dynamic_offset = launch->dynamic_offset;
	block->launch = (struct launch *)launch;
	block->slot = slot;
	block->rank = 0;
	block->cluster = &block->alone;
	block->alone.count = 1;
	block->alone.blocks[0] = block;
	for (uint32_t k = 0; k < block->warp_count; k++)
		slot->warps[k].parameters = launch->request->params;
	return true;
}

enum engine_status slot_prepare(struct slot *slot, const struct launch *launch,
				struct engine_diagnostic *why)
{
	if (launch->gang_blocks == 1 ? slot_prepare_block(slot, launch) : gang_prepare(slot, launch))
		return ENGINE_OK;
	snprintf(why->text, sizeof(why->text),
		 "launch %s: no memory for %llu blocks of %u threads that run together",
		 launch->function->name, (unsigned long long)launch->gang_blocks,
		 launch->threads_per_block);
	return ENGINE_NO_MEMORY;
}

/* ---- running ---- */

/* Blocks are counted cluster by cluster. */
static void place_in_cluster(struct block *block, const struct launch *launch, uint64_t cluster)
{
	const uint32_t *grid = launch->request->grid, *size = launch->cluster;
	uint64_t columns = grid[0] / size[0], rows = grid[1] / size[1];
	uint32_t rank = block->rank;

	block->index[0] = (uint32_t)(cluster % columns) * size[0] + rank % size[0];
	block->index[1] = (uint32_t)(cluster / columns % rows) * size[1] + rank / size[0] % size[1];
	block->index[2] = (uint32_t)(cluster / (columns * rows)) * size[2] +
			  rank / (size[0] * size[1]);
}

void block_start(struct block *block, const struct launch *launch, uint64_t number)
{
	const uint32_t *grid = launch->request->grid;
	uint32_t threads = launch->threads_per_block;

	if (launch->cluster_blocks > 1) {
		place_in_cluster(block, launch, number / launch->cluster_blocks);
	} else if (number < grid[0]) {
		/* Without three divisions, which an empty block would notice. */
		block->index[0] = (uint32_t)number;
		block->index[1] = block->index[2] = 0;
	} else {
		block->index[0] = (uint32_t)(number % grid[0]);
		block->index[1] = (uint32_t)(number / grid[0] % grid[1]);
		block->index[2] = (uint32_t)(number / ((uint64_t)grid[0] * grid[1]));
	}
	block->cluster->arrived = 0;
	block->cluster->parity = 0;
	block->live = threads;
	block->barriers_in_use = 0;
	if (block->strict)
		strict_block_start(block, launch->number);
	for (unsigned k = 0; k < BLOCK_BARRIERS; k++)
		block->barriers[k].arrived = block->barriers[k].population = 0;
	for (uint32_t k = 0; k < block->warp_count; k++) {
		uint32_t rest = threads - k * WARP_LANES;

		warpgroup_forget(&block->warps[k]);
		warp_start(&block->warps[k], rest >= WARP_LANES ? ~0u : (1u << rest) - 1);
	}
}

bool launch_must_stop(struct launch *launch, const struct block *block)
{
	const struct engine_launch *request = launch->request;
	struct engine_diagnostic why;

	if (atomic_load_explicit(&launch->status, memory_order_relaxed) != ENGINE_OK)
		return true;
	if (request->cancel && *request->cancel) {
		snprintf(why.text, sizeof(why.text), "%s was cancelled", launch->function->name);
		pool_fail(launch, ENGINE_CANCELLED, &why);
		return true;
	}
	if (launch->deadline_ns && clock_monotonic_ns() > launch->deadline_ns) {
		snprintf(why.text, sizeof(why.text),
			 ENGINE_NAME " ran longer than %llu ms; last in block (%u,%u,%u)",
			 launch->function->name,
			 (unsigned long long)(request->timeout_ns / 1000000), block->index[0],
			 block->index[1], block->index[2]);
		pool_fail(launch, ENGINE_TIMEOUT, &why);
		return true;
	}
	return false;
}

static void call_helpers_when_due(struct slot *slot, struct launch *launch)
{
	if (!slot->helpers_due || time_stamp_counter() < slot->helpers_due)
		return;
	slot->helpers_due = 0;
	/* The helpers' queue is under a mutex: no unwinding out of it. */
	fault_disarm();
	pool_call_helpers(launch);
	fault_arm(slot);
}

static bool waits_for_cluster(const struct block *block)
{
	for (uint32_t k = 0; k < block->warp_count; k++) {
		const struct warp *warp = &block->warps[k];

		for (uint32_t f = 0; f < warp->fragment_count; f++)
			if (warp->fragments[f].barrier == CLUSTER_BARRIER)
				return true;
	}
	return false;
}

_Noreturn void block_fail_deadlocked(struct block *block)
{
	struct warp *warp = block->warps;

	while (!warp->live)
		warp++;
	warp_fail(warp, ENGINE_LAUNCH_FAILED, "barrier deadlock: %u threads wait", block->live);
}

enum step_result block_step(struct slot *driver, struct block *block, void (*run)(struct warp *warp))
{
	int32_t fuel = block->launch->fuel;
	bool progress = false;

	for (uint32_t k = 0; k < block->warp_count; k++) {
		struct warp *warp = &block->warps[k];

		if (!warp->live || !warp_is_ready(warp))
			continue;
		progress = true;
		warp->fuel = driver->helpers_due ? FUEL_BEFORE_HELPERS : fuel;
		driver->running = warp;
		run(warp);
		if (warp->preempted) {
			warp->preempted = false;
			if (launch_must_stop(block->launch, block))
				return STEP_STOP;
			call_helpers_when_due(driver, block->launch);
		}
	}
	/* Not after each warp: reading the counter takes as long as an empty warp. */
	call_helpers_when_due(driver, block->launch);
	if (!block->live)
		return STEP_DONE;
	if (!progress) {
		if (block->cluster->count == 1 || !waits_for_cluster(block))
			block_fail_deadlocked(block);
		return STEP_WAITS;
	}
	return STEP_AGAIN;
}

static void reclaim_frames(struct block *block)
{
	for (uint32_t k = 0; k < block->warp_count; k++)
		warp_reclaim_frames(&block->warps[k]);
}

static void report(struct slot *slot, struct launch *launch, struct block *block)
{
	const char *name = launch->function->name;

	if (slot->status == ENGINE_ILLEGAL_ADDRESS && slot->fault_address != UINTPTR_MAX) {
		const struct instruction *ip = NULL;

		/* Every access notes where it is before it touches memory. */
		if (slot->running)
			ip = slot->running->ip;
		/* What loads and stores do there is undefined (PTX ISA, "multimem"). */
		snprintf(slot->why.text, sizeof(slot->why.text),
			 "%s %#zx in " ENGINE_NAME " block (%u,%u,%u), PTX line %u",
			 multimem_is_at(launch, slot->fault_address)
				 ? "only multimem may access the multicast address"
				 : "illegal address",
			 (size_t)slot->fault_address, name, block->index[0], block->index[1],
			 block->index[2], ip ? ip->line : 0);
	}
	pool_fail(launch, slot->status, &slot->why);
}

static void run_blocks(struct slot *slot, struct launch *launch)
{
	void (*run)(struct warp *warp) = isa_selected()->run;
	struct block *block = &slot->block;

	for (;;) {
		uint64_t index = atomic_fetch_add_explicit(&launch->next_gang, 1,
							   memory_order_relaxed);
		enum step_result result;

		if (index >= launch->gang_total || launch_must_stop(launch, block))
			return;
		block_start(block, launch, index);
		do
			result = block_step(slot, block, run);
		while (result == STEP_AGAIN);
		if (result == STEP_STOP)
			return;
	}
}

void slot_run(struct slot *slot, struct launch *launch, bool is_helper)
{
	slot->fault_address = UINTPTR_MAX;
	slot->running = NULL;
	if (!_setjmp(slot->recover)) {
		fault_arm(slot);
		if (launch->gang_blocks == 1)
			run_blocks(slot, launch);
		else
			gang_run(slot, launch, is_helper);
		fault_disarm();
	} else {
		fault_disarm();
		report(slot, launch, slot->running ? slot->running->block : &slot->block);
	}
	gang_leave(launch);
}

/* Registers and stacks are as an error left them; constants are not written by
 * kernels, so the next block may start from here. */
void slot_settle(struct slot *slot, const struct launch *launch)
{
	if (atomic_load(&launch->status) != ENGINE_OK) {
		reclaim_frames(&slot->block);
		for (uint64_t k = 0; k < slot->member_count; k++)
			reclaim_frames(&slot->members[k].block);
	}
	if (slot->member_count > MEMBERS_KEPT)
		gang_release(slot);
}
