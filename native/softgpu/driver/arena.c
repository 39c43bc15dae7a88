#define _GNU_SOURCE
#include "arena.h"
#include "log.h"

#include "../engine/engine.h"
#include "queue.h"
#include "virtual.h"
#include "virtual_file.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULE DRIVER_ARENA_GRANULE
#define CELL_COUNT (GRANULE / DRIVER_ARENA_ALIGN)	/* in a shared granule */

/* Where arenas are looked for: 256 slots of 64 GiB that x86-64 and arm64
 * kernels leave alone when they choose addresses themselves. */
#define ARENA_REGION 0x200000000000ul
#define ARENA_SLOT (64ul << 30)
#define ARENA_SLOT_COUNT 256u

/* ThreadSanitizer ends a process that maps memory outside of its own layout.  On x86-64 that
 * permits addresses below 512 GiB, of which executables use the lowest. */
#define ARENA_TSAN_REGION 0x001000000000ul
#define ARENA_TSAN_SLOT_COUNT 7u

/* Consecutive granules that are mapped together, without their slack. */
struct chunk {
	size_t first, count;		/* granules */
	int fd;				/* that other processes map, or -1 */
	bool shared;
	enum driver_arena_group group;
	size_t cells_used;		/* shared: in units of DRIVER_ARENA_ALIGN */
	struct chunk *next_shared;
	uint64_t cells[];		/* shared: CELL_COUNT bits, one when taken */
};

struct driver_arena {
	pthread_mutex_t lock;
	struct board *board;
	bool strict;
	uintptr_t base;
	size_t granules;
	size_t hint;			/* where the last search ended */
	struct chunk **owner;		/* per granule: chunk that it, or its slack, belongs to */
	struct chunk *shared[DRIVER_ARENA_GROUP_COUNT];
};

static size_t round_up(size_t bytes, size_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/* ---- address space ---- */

static void *reserve(const uint8_t uuid[16], size_t bytes)
{
	/* This library, its client's or the program's: one of them is built with it. */
	bool tsan = dlsym(RTLD_DEFAULT, "__tsan_init");
	uintptr_t region = tsan ? ARENA_TSAN_REGION : ARENA_REGION;
	unsigned count = tsan ? ARENA_TSAN_SLOT_COUNT : ARENA_SLOT_COUNT;
	unsigned first = (unsigned)uuid[0] ^ uuid[9];

	for (unsigned i = 0; i < count; i++) {
		unsigned slot = (first + i) % count;
		void *wanted = (void *)(region + slot * ARENA_SLOT);
		void *got = mmap(wanted, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
				 MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

		if (got == wanted)
			return got;
		/* Kernels before 4.17 take the address for a hint. */
		if (got != MAP_FAILED)
			munmap(got, bytes);
		else if (errno != EEXIST)
			break;
	}
	return NULL;
}

/* Anywhere, aligned to a granule. */
static void *reserve_anywhere(size_t bytes)
{
	char *got = mmap(NULL, bytes + GRANULE, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *aligned;

	if (got == MAP_FAILED)
		return NULL;
	aligned = (char *)round_up((uintptr_t)got, GRANULE);
	if (aligned > got)
		munmap(got, (size_t)(aligned - got));
	munmap(aligned + bytes, GRANULE - (size_t)(aligned - got));
	return aligned;
}

int driver_arena_open(struct driver_arena **out, struct board *board, bool strict)
{
	struct driver_arena *arena = calloc(1, sizeof *arena);
	size_t bytes;
	void *base;

	if (!arena)
		return -ENOMEM;
	/* Room for gaps between allocations and for slack around them. */
	bytes = round_up(4 * board_model(board)->memory_bytes + (1ul << 30), GRANULE);
	arena->board = board;
	arena->strict = strict;
	arena->granules = bytes / GRANULE;
	arena->owner = calloc(arena->granules, sizeof *arena->owner);
	if (!arena->owner)
		goto out_free;
	base = reserve(board_identity(board)->uuid, bytes);
	if (!base)
		base = reserve_anywhere(bytes);
	if (!base)
		goto out_free;
	arena->base = (uintptr_t)base;
	if (strict && !engine_strict_region(base, bytes))
		driver_say("strict mode can't follow what device memory holds: no address "
			   "space for its records");
	pthread_mutex_init(&arena->lock, NULL);
	*out = arena;
	return 0;
out_free:
	free(arena->owner);
	free(arena);
	return -ENOMEM;
}

void driver_arena_close(struct driver_arena *arena)
{
	if (!arena)
		return;
	munmap((void *)arena->base, arena->granules * GRANULE);
	for (size_t i = 0; i < arena->granules; ) {
		struct chunk *chunk = arena->owner[i];

		if (!chunk) {
			i++;
			continue;
		}
		board_memory_give(arena->board, chunk->count * GRANULE);
		i = chunk->first + chunk->count + 1;
		if (chunk->fd >= 0)
			close(chunk->fd);
		free(chunk);
	}
	pthread_mutex_destroy(&arena->lock);
	free(arena->owner);
	free(arena);
}

/* ---- chunks; all with the lock ---- */

/* First of `count` free granules in a row, or the number of granules. */
static size_t find_gap(const struct driver_arena *arena, size_t from, size_t to, size_t count)
{
	size_t run = 0;

	for (size_t i = from; i < to; i++) {
		run = arena->owner[i] ? 0 : run + 1;
		if (run == count)
			return i + 1 - count;
	}
	return arena->granules;
}

static struct chunk *chunk_map(struct driver_arena *arena, size_t count, bool shared)
{
	size_t extra = shared ? CELL_COUNT / 8 : 0;
	struct chunk *chunk;
	size_t with_slack = count + 2, at;
	char *start;

	if (board_memory_take(arena->board, count * GRANULE))
		return NULL;
	at = find_gap(arena, arena->hint, arena->granules, with_slack);
	if (at == arena->granules)
		at = find_gap(arena, 0, arena->granules, with_slack);
	chunk = calloc(1, sizeof *chunk + extra);
	if (at == arena->granules || !chunk)
		goto out_give;
	start = (char *)arena->base + at * GRANULE;
	if (arena->strict) {
		if (mprotect(start + GRANULE, count * GRANULE, PROT_READ | PROT_WRITE))
			goto out_give;
	} else {
		if (mprotect(start, with_slack * GRANULE, PROT_READ | PROT_WRITE))
			goto out_give;
		/* Large pages save most of the cost of first touches. */
		if (!shared)
			madvise(start + GRANULE, count * GRANULE, MADV_HUGEPAGE);
	}
	chunk->fd = -1;
	chunk->first = at + 1;
	chunk->count = count;
	chunk->shared = shared;
	for (size_t i = 0; i < with_slack; i++)
		arena->owner[at + i] = chunk;
	arena->hint = at + with_slack;
	return chunk;
out_give:
	board_memory_give(arena->board, count * GRANULE);
	free(chunk);
	return NULL;
}

static void chunk_unmap(struct driver_arena *arena, struct chunk *chunk)
{
	size_t at = chunk->first - 1, with_slack = chunk->count + 2;

	/* A fresh mapping on top gives the pages back and closes the addresses. */
	mmap((char *)arena->base + at * GRANULE, with_slack * GRANULE, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	for (size_t i = 0; i < with_slack; i++)
		arena->owner[at + i] = NULL;
	if (at < arena->hint)
		arena->hint = at;
	board_memory_give(arena->board, chunk->count * GRANULE);
	if (chunk->fd >= 0)
		close(chunk->fd);
	free(chunk);
}

/* ---- cells of shared granules; all with the lock ---- */

static bool cell_taken(const struct chunk *chunk, size_t cell)
{
	return chunk->cells[cell / 64] >> (cell % 64) & 1;
}

static void cells_mark(struct chunk *chunk, size_t first, size_t count, bool taken)
{
	for (size_t i = first; i < first + count; i++) {
		uint64_t bit = 1ull << (i % 64);

		if (taken)
			chunk->cells[i / 64] |= bit;
		else
			chunk->cells[i / 64] &= ~bit;
	}
	if (taken)
		chunk->cells_used += count;
	else
		chunk->cells_used -= count;
}

/* First of `count` free cells in a row at a multiple of `step`, or CELL_COUNT. */
static size_t cells_find(const struct chunk *chunk, size_t count, size_t step)
{
	size_t start = 0;

	if (chunk->cells_used + count > CELL_COUNT)
		return CELL_COUNT;
	while (start + count <= CELL_COUNT) {
		size_t i = 0;

		/* A whole word that is taken needs no look at its bits. */
		if (start % 64 == 0 && chunk->cells[start / 64] == UINT64_MAX) {
			start = round_up(start + 64, step);
			continue;
		}
		while (i < count && !cell_taken(chunk, start + i))
			i++;
		if (i == count)
			return start;
		start = round_up(start + i + 1, step);
	}
	return CELL_COUNT;
}

static int take_shared(struct driver_arena *arena, enum driver_arena_group group, size_t bytes,
		       size_t align, uintptr_t *address)
{
	size_t count = round_up(bytes, DRIVER_ARENA_ALIGN) / DRIVER_ARENA_ALIGN;
	size_t step = align > DRIVER_ARENA_ALIGN ? align / DRIVER_ARENA_ALIGN : 1;
	struct chunk *chunk;
	size_t cell = CELL_COUNT;

	for (chunk = arena->shared[group]; chunk; chunk = chunk->next_shared) {
		cell = cells_find(chunk, count, step);
		if (cell < CELL_COUNT)
			break;
	}
	if (!chunk) {
		chunk = chunk_map(arena, 1, true);
		if (!chunk)
			return -ENOMEM;
		chunk->group = group;
		chunk->next_shared = arena->shared[group];
		arena->shared[group] = chunk;
		cell = 0;
	}
	cells_mark(chunk, cell, count, true);
	*address = arena->base + chunk->first * GRANULE + cell * DRIVER_ARENA_ALIGN;
	return 0;
}

static void give_shared(struct driver_arena *arena, struct chunk *chunk, uintptr_t address,
			size_t bytes)
{
	size_t offset = address - arena->base - chunk->first * GRANULE;
	struct chunk **link = &arena->shared[chunk->group];

	cells_mark(chunk, offset / DRIVER_ARENA_ALIGN,
		   round_up(bytes, DRIVER_ARENA_ALIGN) / DRIVER_ARENA_ALIGN, false);
	if (chunk->cells_used)
		return;
	while (*link != chunk)
		link = &(*link)->next_shared;
	*link = chunk->next_shared;
	chunk_unmap(arena, chunk);
}

int driver_arena_take(struct driver_arena *arena, enum driver_arena_group group, size_t bytes,
		      size_t align, uintptr_t *address)
{
	struct chunk *chunk;
	int error = 0;

	/* More than the arena: also keeps the sums below from wrapping. */
	if (bytes > arena->granules * GRANULE)
		return -ENOMEM;
	if (!bytes)
		bytes = 1;
	pthread_mutex_lock(&arena->lock);
	if (!arena->strict && bytes <= DRIVER_ARENA_SMALL) {
		error = take_shared(arena, group, bytes, align, address);
	} else {
		chunk = chunk_map(arena, round_up(bytes, GRANULE) / GRANULE, false);
		if (!chunk) {
			error = -ENOMEM;
		} else {
			*address = arena->base + chunk->first * GRANULE;
			if (arena->strict) {
				/* As near to the inaccessible end as alignment lets. */
				size_t unit = align > DRIVER_ARENA_ALIGN ? align : DRIVER_ARENA_ALIGN;

				*address += chunk->count * GRANULE - round_up(bytes, unit);
			}
		}
	}
	pthread_mutex_unlock(&arena->lock);
	return error;
}

size_t driver_arena_offset(const struct driver_arena *arena, uintptr_t address)
{
	return address - arena->base;
}

size_t driver_arena_span(const struct driver_arena *arena)
{
	return arena->granules * GRANULE;
}

uintptr_t driver_arena_base(const struct driver_arena *arena)
{
	return arena->base;
}

bool driver_arena_holds(const struct driver_arena *arena, uintptr_t address)
{
	return address - arena->base < driver_arena_span(arena);
}

int driver_arena_take_file(struct driver_arena *arena, size_t bytes, int fd, uintptr_t *address)
{
	struct chunk *chunk = NULL;
	char *start;

	pthread_mutex_lock(&arena->lock);
	if (bytes <= driver_arena_span(arena))
		chunk = chunk_map(arena, round_up(bytes, GRANULE) / GRANULE, false);
	if (chunk) {
		start = (char *)arena->base + chunk->first * GRANULE;
		if (mmap(start, chunk->count * GRANULE, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED, fd,
			 (off_t)driver_arena_offset(arena, (uintptr_t)start)) == MAP_FAILED) {
			chunk_unmap(arena, chunk);
			chunk = NULL;
		} else {
			*address = (uintptr_t)start;
		}
	}
	pthread_mutex_unlock(&arena->lock);
	return chunk ? 0 : -ENOMEM;
}

void driver_arena_give(struct driver_arena *arena, uintptr_t address, size_t bytes)
{
	struct chunk *chunk;

	if (!bytes)
		bytes = 1;
	pthread_mutex_lock(&arena->lock);
	chunk = arena->owner[(address - arena->base) / GRANULE];
	if (chunk->shared)
		give_shared(arena, chunk, address, bytes);
	else
		chunk_unmap(arena, chunk);
	pthread_mutex_unlock(&arena->lock);
}

/* ---- sharing ---- */

/* Put a file with the same bytes in the place of private memory; with the lock,
 * and while nothing runs. */
static void chunk_share(struct driver_arena *arena, struct chunk *chunk)
{
	char *start = (char *)arena->base + chunk->first * GRANULE, *aside;
	size_t bytes = chunk->count * GRANULE;
	int fd = driver_virtual_file(board_identity(arena->board), bytes);

	if (fd < 0)
		return;
	aside = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (aside == MAP_FAILED) {
		close(fd);
		return;
	}
	memcpy(aside, start, bytes);
	munmap(aside, bytes);
	if (mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		close(fd);
	else
		chunk->fd = fd;
}

struct sharing {
	struct driver_arena *arena;
	uintptr_t address;
	size_t offset;
	int fd;
};

/* Operations take the lock too (frees): so it is taken when none runs. */
static void share(void *opaque)
{
	struct sharing *sharing = opaque;
	struct driver_arena *arena = sharing->arena;
	size_t at = sharing->address - arena->base;
	struct chunk *chunk;

	pthread_mutex_lock(&arena->lock);
	chunk = arena->owner[at / GRANULE];
	if (chunk) {
		if (chunk->fd < 0)
			chunk_share(arena, chunk);
		sharing->fd = chunk->fd;
		sharing->offset = at - chunk->first * GRANULE;
	}
	pthread_mutex_unlock(&arena->lock);
}

int driver_arena_share(struct driver_arena *arena, uintptr_t address, size_t *offset)
{
	struct sharing sharing = { .arena = arena, .address = address, .fd = -1 };

	driver_stream_between(share, &sharing);
	*offset = sharing.offset;
	return sharing.fd;
}
