/* arena.h - the device addresses of one board in this process.
 *
 * One stretch of address space is reserved per device, at a place that follows
 * from the board's UUID, so that the devices of different boards seldom claim
 * the same addresses even when they are used from one program.  Within it,
 * memory is mapped in granules of 2 MiB, as a GPU's large pages are: requests
 * of at most 1 MiB share granules, at multiples of 512 bytes; larger ones have
 * granules of their own.  Mapped granules count against the board's memory.
 * Memory that can be shared with other processes shares no granule with memory
 * that is also written outside of streams (variables by the loader, managed
 * memory by the program): sharing puts a copy in its place.
 *
 * Around every mapped stretch one more granule is accessible, because real
 * programs read a little out of bounds and real GPUs let them (their pages are
 * as large).  In strict mode nothing around is accessible and every request
 * ends at an inaccessible page.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_ARENA_H
#define FARBUS_SOFTGPU_DRIVER_ARENA_H

#include "board.h"

#define DRIVER_ARENA_GRANULE (2ul << 20)	/* bytes */
#define DRIVER_ARENA_ALIGN 512ul		/* bytes */
#define DRIVER_ARENA_SMALL (1ul << 20)		/* largest request that shares a granule */

struct driver_arena;

enum driver_arena_group {
	DRIVER_ARENA_SHAREABLE,		/* written by what runs in streams, and nothing else */
	DRIVER_ARENA_PRIVATE,
	DRIVER_ARENA_GROUP_COUNT,
};

/* 0 or -ENOMEM when the addresses can't be reserved. */
int driver_arena_open(struct driver_arena **out, struct board *board, bool strict);
void driver_arena_close(struct driver_arena *arena);

/* `align` is a power of two of at most one granule.
 * 0 or -ENOMEM: the board's memory is full, or no gap is large enough. */
int driver_arena_take(struct driver_arena *arena, enum driver_arena_group group, size_t bytes,
		      size_t align, uintptr_t *address);
/* Whole granules, that are those of the file `fd` at driver_arena_offset of the address:
 * others who have the file can map them. */
int driver_arena_take_file(struct driver_arena *arena, size_t bytes, int fd, uintptr_t *address);
size_t driver_arena_offset(const struct driver_arena *arena, uintptr_t address);
/* How large a file for driver_arena_take_file must be. */
size_t driver_arena_span(const struct driver_arena *arena);
uintptr_t driver_arena_base(const struct driver_arena *arena);
bool driver_arena_holds(const struct driver_arena *arena, uintptr_t address);
/* `address` is one that take gave. */
void driver_arena_give(struct driver_arena *arena, uintptr_t address, size_t bytes);

/* Give shareable memory at `address` of the arena a file that others can map, with what it
 * holds; waits until nothing runs.  The file, which stays the arena's, and where
 * in it the address is; or -1. */
int driver_arena_share(struct driver_arena *arena, uintptr_t address, size_t *offset);

#endif
