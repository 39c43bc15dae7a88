/* store.h - the memory that a pool has reserved, in segments, and its blocks.
 *
 * A segment is made of blocks side by side.  A block is in use, or free; a free one
 * may have a point: until that is reached, only its stream may use it again at once,
 * for whatever that stream does with it comes after.
 *
 * The caller serialises all calls for one store.
 */
#ifndef FARBUS_SOFTGPU_DRIVER_STORE_H
#define FARBUS_SOFTGPU_DRIVER_STORE_H

#include "queue.h"

struct driver_block;

struct driver_store {
	struct driver_device *device;
	int fd;				/* that the segments are pages of, or -1 */
	size_t max;			/* bytes to reserve at most; 0: no limit */
	size_t reserved, reserved_high;	/* bytes */
	struct store_segment *segments;
	struct driver_block *free;
};

/* What a request may use beyond memory that nobody used. */
enum {
	DRIVER_REUSE_COMPLETE = 1,	/* what another stream gave back, once it got there */
	DRIVER_REUSE_PENDING = 2,	/* and before, if *after is waited for; instead of -ENOMEM */
};

/* `bytes` for work of `stream`.  0 or -ENOMEM.  When *after has a stream, the work
 * must wait for that point first, which the caller drops. */
int driver_store_take(struct driver_store *store, size_t bytes, struct CUstream_st *stream,
		      unsigned reuse, struct driver_block **block, struct driver_point *after);
uintptr_t driver_block_address(const struct driver_block *block);

/* No longer in use once the point, which is taken over, is reached; NULL: now. */
void driver_store_give(struct driver_store *store, struct driver_block *block,
		       const struct driver_point *point);
/* Look which points are reached. */
void driver_store_settle(struct driver_store *store);
/* Give segments back that nothing uses, until not more than `keep` bytes are
 * reserved.  True when one was. */
bool driver_store_trim(struct driver_store *store, size_t keep);
/* A point that free memory waits for, for the caller to drop; false: there is none. */
bool driver_store_pending(const struct driver_store *store, struct driver_point *point);
/* Nothing may be in use. */
void driver_store_close(struct driver_store *store);

#endif
