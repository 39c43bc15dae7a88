/* strict.h - what strict mode knows of memory: what is written, and who did it last.
 *
 * The decoder puts a step "@check" in front of every access to shared and global
 * memory when strict mode is on; without it nothing here costs anything.
 *
 * Races are found between the warps of a block by vector clocks (Flanagan and
 * Freund, "FastTrack", PLDI 2009, with two readers remembered instead of all), and
 * between blocks by whether the first has released and the second has acquired
 * anything in between.  Barriers, atomics, volatile and relaxed accesses, fences and
 * mbarriers order all that came before them with all that comes after: what is
 * reported is a race, not every race is reported.  Lanes of one warp are not told
 * apart.
 */
#ifndef FARBUS_SOFTGPU_STRICT_H
#define FARBUS_SOFTGPU_STRICT_H

#include "state.h"

enum strict_access {
	STRICT_READ = 1,
	STRICT_WRITE = 2,
	STRICT_SYNC = 4,	/* atomic, volatile, relaxed or stronger */
	STRICT_SHARED = 8,	/* the address is an offset in shared memory */
};

struct strict_block;

/* Memory for a block's record, for shared_bytes; NULL: none. */
struct strict_block *strict_block_make(uint32_t shared_bytes);
void strict_block_free(struct strict_block *strict);
/* Nothing is written yet, and no warp knows of another. */
void strict_block_start(struct block *block, uint32_t launch_number);
uint32_t strict_next_launch(void);

/* An access of one lane by pointer. */
void strict_pointer_access(struct warp *warp, const struct instruction *instruction, unsigned lane,
			   uint64_t pointer, uint32_t bytes, unsigned access);
/* Written by something that is not followed further. */
void strict_written(struct warp *warp, uint64_t pointer, uint32_t bytes);
/* Orders what this warp did with what others do behind their own such point. */
void strict_sync(struct warp *warp);
/* wgmma reads shared memory until its threads have waited for the group that it belongs to. */
void strict_group_read(struct warp *warp, const struct instruction *instruction, uint32_t address, uint32_t bytes);
uint32_t strict_group_number(const struct warp *warp);	/* of the group that is not committed yet, from 1 on */
void strict_group_commit(struct warp *warp);
/* All groups but the `pending` latest: the number of the last one. */
uint32_t strict_group_wait(struct warp *warp, uint32_t pending);
void strict_barrier_arrive(struct block *block, uint32_t warp, unsigned barrier);
void strict_barrier_complete(struct block *block, unsigned barrier);

extern const struct form_table forms_strict;

#endif
