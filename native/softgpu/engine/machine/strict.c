/* strict.c - uninitialised reads, accesses outside allocations, races. */
#define _GNU_SOURCE
#include "strict.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "handler.h"
#include "../running.h"
#include "warpgroup.h"

#define WARPS_MAX 32		/* 1024 threads */
#define READERS_MAX (WARPS_MAX + WARPS_MAX / WARPGROUP_WARPS)	/* warps, and the wgmma of each warpgroup */
#define WORD 4			/* bytes: accesses are remembered by the word */
#define REGIONS_MAX 16
#define RELEASE_SLOTS 4096	/* blocks share counters beyond this: races are missed, none made up */
#define MANY_BLOCKS 0xffffffffu

/* ---- records ---- */

struct shared_record {
	uint32_t write_clock;
	uint32_t read_clock[2];	/* of the last two warps that read */
	uint8_t write_warp, read_warp[2];
	uint8_t write_bytes : 4, read_bytes : 4;
};

struct global_record {
	uint32_t write_launch, write_block, write_clock;
	uint32_t read_launch, read_block, read_clock;
	uint16_t write_release, read_release;
	uint8_t write_warp, read_warp;
	uint8_t write_bytes, read_bytes;	/* a bit a byte of the word */
};

struct region {
	uintptr_t base;
	size_t bytes;
	uint8_t *states;		/* enum engine_memory_state a byte */
	struct global_record *records;	/* one a word */
};

struct strict_block {
	uint32_t clocks[WARPS_MAX][READERS_MAX];	/* what each warp knows of each; wgmma: groups that are complete */
	uint32_t released[READERS_MAX];		/* what every sync point has made known */
	uint32_t barriers[BLOCK_BARRIERS][READERS_MAX];
	uint32_t committed[WARPS_MAX];		/* groups of wgmma */
	uint32_t launch, number;
	bool acquired;
	uint32_t shared_bytes;
	uint8_t *written;			/* a byte a byte of shared memory */
	struct shared_record *records;
};

static struct {
	struct region regions[REGIONS_MAX];
	_Atomic unsigned region_count;
	pthread_mutex_t mutex;
	_Atomic uint32_t launches;
	_Atomic uint16_t releases[RELEASE_SLOTS];
} strict = { .mutex = PTHREAD_MUTEX_INITIALIZER };

/* ---- device memory ---- */

static void *reserve(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

bool engine_strict_region(void *base, size_t bytes)
{
	bool done = false;
	unsigned count;

	pthread_mutex_lock(&strict.mutex);
	count = atomic_load(&strict.region_count);
	if (count < REGIONS_MAX) {
		struct region *region = &strict.regions[count];

		*region = (struct region){ .base = (uintptr_t)base, .bytes = bytes };
		region->states = reserve(bytes);
		region->records = reserve(bytes / WORD * sizeof(struct global_record));
		done = region->states && region->records;
		if (done)
			atomic_store(&strict.region_count, count + 1);
	}
	pthread_mutex_unlock(&strict.mutex);
	return done;
}

static struct region *region_at(uintptr_t address)
{
	unsigned count = atomic_load_explicit(&strict.region_count, memory_order_acquire);

	for (unsigned k = 0; k < count; k++)
		if (address - strict.regions[k].base < strict.regions[k].bytes)
			return &strict.regions[k];
	return NULL;
}

void engine_strict_mark(const void *memory, size_t bytes, enum engine_memory_state state)
{
	struct region *region = region_at((uintptr_t)memory);

	if (!region)
		return;
	if (bytes > region->bytes - ((uintptr_t)memory - region->base))
		bytes = region->bytes - ((uintptr_t)memory - region->base);
	memset(region->states + ((uintptr_t)memory - region->base), (int)state, bytes);
}

void engine_strict_copy(void *to, const void *from, size_t bytes)
{
	struct region *target = region_at((uintptr_t)to), *source = region_at((uintptr_t)from);

	if (!target)
		return;
	if (!source) {
		engine_strict_mark(to, bytes, ENGINE_MEMORY_WRITTEN);
		return;
	}
	memmove(target->states + ((uintptr_t)to - target->base),
		source->states + ((uintptr_t)from - source->base), bytes);
}

/* ---- blocks ---- */

struct strict_block *strict_block_make(uint32_t shared_bytes)
{
	struct strict_block *block = calloc(1, sizeof(*block));

	if (!block)
		return NULL;
	block->shared_bytes = shared_bytes;
	block->written = calloc(1, (size_t)shared_bytes + 1);
	block->records = calloc((size_t)shared_bytes / WORD + 1, sizeof(*block->records));
	if (!block->written || !block->records) {
		strict_block_free(block);
		return NULL;
	}
	return block;
}

void strict_block_free(struct strict_block *block)
{
	if (!block)
		return;
	free(block->written);
	free(block->records);
	free(block);
}

uint32_t strict_next_launch(void)
{
	return atomic_fetch_add(&strict.launches, 1) + 1;
}

void strict_block_start(struct block *block, uint32_t launch_number)
{
	const uint32_t *grid = block->launch->request->grid;
	struct strict_block *own = block->strict;

	memset(own->clocks, 0, sizeof(own->clocks));
	memset(own->released, 0, sizeof(own->released));
	memset(own->barriers, 0, sizeof(own->barriers));
	memset(own->committed, 0, sizeof(own->committed));
	memset(own->written, 0, own->shared_bytes);
	memset(own->records, 0, ((size_t)own->shared_bytes / WORD + 1) * sizeof(*own->records));
	for (unsigned k = 0; k < WARPS_MAX; k++)
		own->clocks[k][k] = 1;
	own->launch = launch_number;
	own->number = block->index[0] + grid[0] * (block->index[1] + grid[1] * block->index[2]);
	own->acquired = false;
}

static void join(uint32_t to[READERS_MAX], const uint32_t from[READERS_MAX])
{
	for (unsigned k = 0; k < READERS_MAX; k++)
		to[k] = to[k] > from[k] ? to[k] : from[k];
}

static _Atomic uint16_t *releases_of(uint32_t launch, uint32_t block)
{
	return &strict.releases[(launch * 2654435761u + block) % RELEASE_SLOTS];
}

static void acquire(struct warp *w)
{
	struct strict_block *own = w->block->strict;

	join(own->clocks[w->index], own->released);
	own->acquired = true;
}

static void release(struct warp *w)
{
	struct strict_block *own = w->block->strict;

	join(own->released, own->clocks[w->index]);
	own->clocks[w->index][w->index]++;
	atomic_fetch_add(releases_of(own->launch, own->number), 1);
}

void strict_sync(struct warp *w)
{
	acquire(w);
	release(w);
}

void strict_barrier_arrive(struct block *block, uint32_t warp, unsigned barrier)
{
	struct strict_block *own = block->strict;

	join(own->barriers[barrier], own->clocks[warp]);
	own->clocks[warp][warp]++;
}

void strict_barrier_complete(struct block *block, unsigned barrier)
{
	struct strict_block *own = block->strict;

	for (uint32_t k = 0; k < block->warp_count; k++) {
		const struct warp *warp = &block->warps[k];

		for (uint32_t f = 0; f < warp->fragment_count; f++)
			if (warp->fragments[f].state == FRAGMENT_AT_BARRIER &&
			    warp->fragments[f].barrier == barrier)
				join(own->clocks[k], own->barriers[barrier]);
	}
	memset(own->barriers[barrier], 0, sizeof(own->barriers[barrier]));
}

/* ---- findings ---- */

struct access {
	struct warp *w;
	const struct instruction *i;
	unsigned lane;
	const char *space;
	uint64_t address;
	uint32_t bytes;
	bool writes;
	bool is_group;		/* a read of wgmma, which goes on */
};

static _Noreturn void report(const struct access *at, enum engine_status status, const char *what)
{
	const struct warp *w = at->w;

	warp_fail(at->w, status, "strict: %s: %s of %u bytes at %s %#llx by thread (%u,%u,%u) (PTX line %u)",
		  what, at->writes ? "write" : "read", at->bytes, at->space,
		  (unsigned long long)at->address, w->thread_index[0][at->lane],
		  w->thread_index[1][at->lane], w->thread_index[2][at->lane], at->i->line);
}

static _Noreturn void report_race(const struct access *at, bool other_writes, uint32_t warp, int64_t block)
{
	char what[96];

	if (warp >= WARPS_MAX)
		snprintf(what, sizeof(what), "race with a read by wgmma of warps %u to %u that nothing has waited for",
			 (warp - WARPS_MAX) * WARPGROUP_WARPS,
			 (warp - WARPS_MAX) * WARPGROUP_WARPS + WARPGROUP_WARPS - 1);
	else if (block < 0)
		snprintf(what, sizeof(what), "race with a %s by warp %u of the block",
			 other_writes ? "write" : "read", warp);
	else if (block == MANY_BLOCKS)
		snprintf(what, sizeof(what), "race with a read by another block");
	else
		snprintf(what, sizeof(what), "race with a %s by block %lld",
			 other_writes ? "write" : "read", (long long)block);
	report(at, ENGINE_LAUNCH_FAILED, what);
}

/* Structures are loaded with their padding: some bytes that were written are enough. */
static bool has_no_written(const uint8_t *states, uint32_t bytes, uint8_t written)
{
	for (uint32_t k = 0; k < bytes; k++)
		if (states[k] == written)
			return false;
	return true;
}

/* Compilers load early, and sorts look one past their end, what they then do not use:
 * once a launch, and the kernel goes on. */
static void note_unwritten(const struct access *at)
{
	const struct warp *w = at->w;
	struct launch *launch = w->block->launch;

	if (launch->noted)
		return;
	launch->noted = true;
	fprintf(stderr, "softgpu: kernel %s: strict: not initialised: read of %u bytes at shared %#llx by "
		"thread (%u,%u,%u) of block (%u,%u,%u) (PTX line %u); it may be unused, the kernel goes on\n",
		launch->function->name, at->bytes, (unsigned long long)at->address,
		w->thread_index[0][at->lane], w->thread_index[1][at->lane],
		w->thread_index[2][at->lane], w->block->index[0], w->block->index[1],
		w->block->index[2], at->i->line);
}

/* ---- shared memory ---- */

/* Is what `warp` did at `clock` known to have happened? */
static bool is_before(const struct strict_block *own, const struct warp *w, uint32_t warp, uint32_t clock)
{
	return warp == w->index || clock <= own->clocks[w->index][warp];
}

static void shared_word(const struct access *at, uint32_t word, uint8_t bytes)
{
	struct strict_block *own = at->w->block->strict;
	struct shared_record *record = &own->records[word];
	uint32_t self = at->w->index, clock = own->clocks[self][self];

	if (at->is_group) {
		clock = strict_group_number(at->w);
		self = WARPS_MAX + self / WARPGROUP_WARPS;
	}
	if (record->write_clock && (record->write_bytes & bytes) &&
	    !is_before(own, at->w, record->write_warp, record->write_clock))
		report_race(at, true, record->write_warp, -1);
	if (at->writes) {
		for (unsigned k = 0; k < 2; k++)
			if (record->read_clock[k] && (record->read_bytes & bytes) &&
			    !is_before(own, at->w, record->read_warp[k], record->read_clock[k]))
				report_race(at, false, record->read_warp[k], -1);
		/* Reads before this write are older than whatever comes. */
		*record = (struct shared_record){ .write_clock = clock, .write_warp = (uint8_t)self,
						  .write_bytes = bytes };
		return;
	}
	if (record->read_clock[0] && record->read_warp[0] != self) {
		record->read_clock[1] = record->read_clock[0];
		record->read_warp[1] = record->read_warp[0];
	}
	record->read_clock[0] = clock;
	record->read_warp[0] = (uint8_t)self;
	record->read_bytes |= bytes;
}

static uint8_t bytes_of_word(uint64_t start, uint64_t end, uint64_t word)
{
	uint64_t first = start > word * WORD ? start - word * WORD : 0;
	uint64_t last = end < (word + 1) * WORD ? end - word * WORD : WORD;

	return (uint8_t)(((1u << last) - 1) & ~((1u << first) - 1));
}

static void shared_access(struct access *at, unsigned access)
{
	struct strict_block *own = at->w->block->strict;
	uint64_t start = at->address, end = start + at->bytes;

	if (end > own->shared_bytes)
		return;		/* the access itself fails */
	at->space = "shared";
	if (access & STRICT_READ) {
		at->writes = false;
		if (has_no_written(own->written + start, at->bytes, 1))
			note_unwritten(at);
	}
	for (uint64_t word = start / WORD; word * WORD < end; word++) {
		uint8_t bytes = bytes_of_word(start, end, word);

		if (access & STRICT_READ) {
			at->writes = false;
			shared_word(at, (uint32_t)word, bytes);
		}
		if (access & STRICT_WRITE) {
			at->writes = true;
			shared_word(at, (uint32_t)word, bytes);
		}
	}
	if (access & STRICT_WRITE)
		memset(own->written + start, 1, at->bytes);
}

/* ---- global memory ---- */

/* Between blocks: has the other released something since, and this one acquired? */
static bool blocks_are_ordered(const struct strict_block *own, uint32_t block, uint16_t release)
{
	if (!own->acquired)
		return false;
	return block == MANY_BLOCKS || atomic_load(releases_of(own->launch, block)) != release;
}

static bool global_is_ordered(const struct access *at, uint32_t launch, uint32_t block, uint32_t warp,
			      uint32_t clock, uint16_t release)
{
	const struct strict_block *own = at->w->block->strict;

	if (launch != own->launch)
		return true;
	if (block == own->number)
		return is_before(own, at->w, warp, clock);
	return blocks_are_ordered(own, block, release);
}

static void global_word(const struct access *at, struct global_record *record, uint8_t bytes)
{
	struct strict_block *own = at->w->block->strict;
	uint32_t self = at->w->index, clock = own->clocks[self][self];
	uint16_t released = atomic_load(releases_of(own->launch, own->number));

	if ((record->write_bytes & bytes) &&
	    !global_is_ordered(at, record->write_launch, record->write_block, record->write_warp,
			       record->write_clock, record->write_release))
		report_race(at, true, record->write_warp,
			    record->write_block == own->number ? -1 : (int64_t)record->write_block);
	if (at->writes) {
		if ((record->read_bytes & bytes) &&
		    !global_is_ordered(at, record->read_launch, record->read_block, record->read_warp,
				       record->read_clock, record->read_release))
			report_race(at, false, record->read_warp,
				    record->read_block == own->number ? -1 : (int64_t)record->read_block);
		*record = (struct global_record){
			.write_launch = own->launch, .write_block = own->number,
			.write_clock = clock, .write_release = released,
			.write_warp = (uint8_t)self, .write_bytes = bytes,
		};
		return;
	}
	if (record->read_launch == own->launch && record->read_bytes && record->read_block != own->number) {
		record->read_block = MANY_BLOCKS;
		record->read_bytes |= bytes;
		return;
	}
	record->read_launch = own->launch;
	record->read_block = own->number;
	record->read_clock = clock;
	record->read_release = released;
	record->read_warp = (uint8_t)self;
	record->read_bytes = bytes;
}

static void global_access(struct access *at, unsigned access)
{
	struct region *region = region_at(at->address);
	uint64_t start, end;

	if (!region)
		return;
	at->space = "global";
	at->writes = access & STRICT_WRITE && !(access & STRICT_READ);
	start = at->address - region->base;
	end = start + at->bytes;
	if (end > region->bytes)
		return;
	for (uint64_t k = start; k < end; k++)
		if (region->states[k] == ENGINE_MEMORY_FREE)
			report(at, ENGINE_ILLEGAL_ADDRESS, "outside of every allocation");
	if (access & STRICT_READ &&
	    has_no_written(region->states + start, at->bytes, ENGINE_MEMORY_WRITTEN))
		report(at, ENGINE_LAUNCH_FAILED, "not initialised");
	for (uint64_t word = start / WORD; word * WORD < end; word++) {
		uint8_t bytes = bytes_of_word(start, end, word);

		if (access & STRICT_READ) {
			at->writes = false;
			global_word(at, &region->records[word], bytes);
		}
		if (access & STRICT_WRITE) {
			at->writes = true;
			global_word(at, &region->records[word], bytes);
		}
	}
	if (access & STRICT_WRITE)
		memset(region->states + start, ENGINE_MEMORY_WRITTEN, at->bytes);
}

/* ---- accesses ---- */

void strict_pointer_access(struct warp *w, const struct instruction *i, unsigned lane, uint64_t pointer,
			   uint32_t bytes, unsigned access)
{
	struct access at = { .w = w, .i = i, .lane = lane, .address = pointer, .bytes = bytes };
	uint64_t offset = pointer - (uint64_t)(uintptr_t)w->shared;

	if (offset < w->shared_bytes) {
		at.address = offset;
		shared_access(&at, access);
	} else if (cluster_block_at(w, pointer)) {
		if (access & STRICT_WRITE)
			strict_written(w, pointer, bytes);
	} else {
		global_access(&at, access);
	}
}

void strict_written(struct warp *w, uint64_t pointer, uint32_t bytes)
{
	const struct block *block = cluster_block_at(w, pointer);
	uint64_t offset;

	if (!block) {
		engine_strict_mark((const void *)(uintptr_t)pointer, bytes, ENGINE_MEMORY_WRITTEN);
		return;
	}
	offset = pointer - (uint64_t)(uintptr_t)block->shared;
	if (offset + bytes <= block->strict->shared_bytes)
		memset(block->strict->written + offset, 1, bytes);
}

/* ---- wgmma ---- */

void strict_group_read(struct warp *w, const struct instruction *i, uint32_t address, uint32_t bytes)
{
	struct access at = { .w = w, .i = i, .address = address, .bytes = bytes, .is_group = true };

	shared_access(&at, STRICT_READ);
}

uint32_t strict_group_number(const struct warp *w)
{
	return w->block->strict->committed[w->index] + 1;
}

void strict_group_commit(struct warp *w)
{
	w->block->strict->committed[w->index]++;
}

uint32_t strict_group_wait(struct warp *w, uint32_t pending)
{
	struct strict_block *own = w->block->strict;
	uint32_t committed = own->committed[w->index];
	uint32_t complete = committed > pending ? committed - pending : 0;
	uint32_t *known = &own->clocks[w->index][WARPS_MAX + w->index / WARPGROUP_WARPS];

	if (*known < complete)
		*known = complete;
	return complete;
}

/* ---- steps in front of accesses ---- */

/* a: address or -1; imm: offset; x: bytes; y: enum strict_access */
HANDLER(check)
{
	unsigned access = (unsigned)i->y;

	w->ip = i;
	if (!w->block->strict)
		return i + 1;
	if (access & STRICT_SYNC)
		acquire(w);
	FOR_ACTIVE(w->mask, l)
	{
		if (access & STRICT_SHARED) {
			u32 offset = (i->a >= 0 ? REGISTER(u32, i->a)[l] : 0) + (u32)i->imm;
			struct access at = { .w = w, .i = i, .lane = l, .address = offset,
					     .bytes = (u32)i->x };

			shared_access(&at, access);
		} else {
			u64 pointer = (i->a >= 0 ? REGISTER(u64, i->a)[l] : 0) + (u64)i->imm;

			strict_pointer_access(w, i, l, pointer, (u32)i->x, access);
		}
	}
	if (access & STRICT_SYNC)
		release(w);
	return i + 1;
}

HANDLER(check_sync)
{
	if (w->block->strict)
		strict_sync(w);
	return i + 1;
}

static const struct form forms[] = {
	{ "@check", NULL, check, NULL, 0, false },
	{ "@check.sync", NULL, check_sync, NULL, 0, false },
};

const struct form_table forms_strict = { forms, sizeof(forms) / sizeof(forms[0]) };
