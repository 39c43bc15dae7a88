#define _GNU_SOURCE
#include "store.h"

#include "arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#define SEGMENT_BYTES_MIN DRIVER_ARENA_GRANULE

struct driver_block {
	struct driver_block *left, *right;	/* neighbours in the segment, by address */
	struct driver_block *next, **link;	/* in the list of free ones; link NULL: in use */
	struct store_segment *segment;
	uintptr_t address;
	size_t size;
	struct driver_point point;	/* of a free one: stream NULL when all use is over */
};

struct store_segment {
	struct store_segment *next;
	struct driver_block *first;
	uintptr_t address;
	size_t size;
};

static size_t round_up(size_t bytes, size_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

uintptr_t driver_block_address(const struct driver_block *block)
{
	return block->address;
}

/* ---- the list of free blocks ---- */

static void free_add(struct driver_store *store, struct driver_block *block)
{
	block->next = store->free;
	block->link = &store->free;
	if (block->next)
		block->next->link = &block->next;
	store->free = block;
}

static void free_remove(struct driver_block *block)
{
	*block->link = block->next;
	if (block->next)
		block->next->link = block->link;
	block->link = NULL;
}

/* Can two neighbours be one?  Then they wait for the same stream, or for none. */
static bool can_join(const struct driver_block *left, const struct driver_block *right)
{
	return left && right && left->link && right->link &&
	       left->point.stream == right->point.stream;
}

/* `right` becomes a part of `left`. */
static void join(struct driver_block *left, struct driver_block *right)
{
	free_remove(right);
	left->size += right->size;
	left->right = right->right;
	if (left->right)
		left->right->left = left;
	if (right->point.sequence > left->point.sequence)
		left->point.sequence = right->point.sequence;
	driver_point_drop(&right->point);
	free(right);
}

static void join_all(struct driver_store *store)
{
	for (struct driver_block *block = store->free; block; block = block->next)
		while (can_join(block, block->right))
			join(block, block->right);
}

void driver_store_settle(struct driver_store *store)
{
	bool any = false;

	for (struct driver_block *block = store->free; block; block = block->next) {
		if (!block->point.stream || !driver_point_reached(&block->point))
			continue;
		driver_point_drop(&block->point);
		block->point.sequence = 0;
		any = true;
	}
	if (any)
		join_all(store);
}

bool driver_store_pending(const struct driver_store *store, struct driver_point *point)
{
	for (const struct driver_block *block = store->free; block; block = block->next) {
		if (!block->point.stream)
			continue;
		*point = block->point;
		driver_stream_hold(point->stream);
		return true;
	}
	return false;
}

/* ---- segments ---- */

static int take_segment(struct driver_store *store, size_t size, uintptr_t *address)
{
	struct driver_arena *arena = store->device->arena;

	return store->fd < 0 ? driver_arena_take(arena, DRIVER_ARENA_SHAREABLE, size,
						 DRIVER_ARENA_GRANULE, address) :
			       driver_arena_take_file(arena, size, store->fd, address);
}

static bool grow(struct driver_store *store, size_t bytes)
{
	size_t size = round_up(bytes > SEGMENT_BYTES_MIN ? bytes : SEGMENT_BYTES_MIN,
			       DRIVER_ARENA_GRANULE);
	struct store_segment *segment;
	struct driver_block *block;

	if (store->max && (size > store->max || store->reserved > store->max - size))
		return false;
	segment = calloc(1, sizeof *segment);
	block = calloc(1, sizeof *block);
	if (!segment || !block || take_segment(store, size, &segment->address)) {
		free(segment);
		free(block);
		return false;
	}
	block->segment = segment;
	block->address = segment->address;
	block->size = segment->size = size;
	segment->first = block;
	segment->next = store->segments;
	store->segments = segment;
	store->reserved += size;
	if (store->reserved > store->reserved_high)
		store->reserved_high = store->reserved;
	free_add(store, block);
	return true;
}

static void release_segment(struct driver_store *store, struct store_segment **link)
{
	struct store_segment *segment = *link;

	*link = segment->next;
	free_remove(segment->first);
	free(segment->first);
	store->reserved -= segment->size;
	/* What the file held goes, too: mapping it no longer would keep it. */
	if (store->fd >= 0)
		fallocate(store->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			  (off_t)driver_arena_offset(store->device->arena, segment->address),
			  (off_t)segment->size);
	driver_arena_give(store->device->arena, segment->address, segment->size);
	free(segment);
}

bool driver_store_trim(struct driver_store *store, size_t keep)
{
	struct store_segment **link = &store->segments;
	bool any = false;

	driver_store_settle(store);
	while (*link && store->reserved > keep) {
		const struct driver_block *first = (*link)->first;

		/* The whole segment is one block, and nobody's. */
		if (first->link && !first->right && !first->point.stream) {
			release_segment(store, link);
			any = true;
		} else {
			link = &(*link)->next;
		}
	}
	return any;
}

void driver_store_close(struct driver_store *store)
{
	for (struct driver_block *block = store->free; block; block = block->next) {
		driver_point_drop(&block->point);
		block->point.sequence = 0;
	}
	join_all(store);
	driver_store_trim(store, 0);
}

/* ---- blocks ---- */

/* The smallest free block that is large enough, if it may be used before its point
 * is reached (`early`) or has none, or is the stream's own. */
static struct driver_block *find(const struct driver_store *store, size_t size,
				 const struct CUstream_st *stream, bool early)
{
	struct driver_block *best = NULL;

	for (struct driver_block *block = store->free; block; block = block->next) {
		if (block->size < size || (best && block->size >= best->size))
			continue;
		if (early || !block->point.stream || block->point.stream == stream)
			best = block;
	}
	return best;
}

/* Leave what is beyond `size` free; without memory for a record it goes along. */
static void split(struct driver_store *store, struct driver_block *block, size_t size)
{
	struct driver_block *rest;

	if (block->size == size)
		return;
	rest = calloc(1, sizeof *rest);
	if (!rest)
		return;
	*rest = (struct driver_block){
		.left = block, .right = block->right, .segment = block->segment,
		.address = block->address + size, .size = block->size - size,
		.point = block->point,
	};
	if (rest->point.stream)
		driver_stream_hold(rest->point.stream);
	if (rest->right)
		rest->right->left = rest;
	block->right = rest;
	block->size = size;
	free_add(store, rest);
}

int driver_store_take(struct driver_store *store, size_t bytes, struct CUstream_st *stream,
		      unsigned reuse, struct driver_block **out, struct driver_point *after)
{
	struct driver_block *block;
	size_t size;

	after->stream = NULL;
	if (bytes > board_model(store->device->board)->memory_bytes)
		return -ENOMEM;
	size = round_up(bytes, DRIVER_ARENA_ALIGN);
	if (reuse & DRIVER_REUSE_COMPLETE)
		driver_store_settle(store);
	block = find(store, size, stream, false);
	if (!block && (grow(store, size) || (driver_store_trim(store, 0) && grow(store, size))))
		block = find(store, size, stream, false);
	if (!block && reuse & DRIVER_REUSE_PENDING)
		block = find(store, size, stream, true);
	if (!block)
		return -ENOMEM;
	free_remove(block);
	split(store, block, size);
	if (block->point.stream && block->point.stream != stream)
		*after = block->point;
	else
		driver_point_drop(&block->point);
	block->point = (struct driver_point){ NULL, 0 };
	*out = block;
	return 0;
}

void driver_store_give(struct driver_store *store, struct driver_block *block,
		       const struct driver_point *point)
{
	if (point)
		block->point = *point;
	free_add(store, block);
	if (can_join(block, block->right))
		join(block, block->right);
	if (can_join(block->left, block))
		join(block->left, block);
}
