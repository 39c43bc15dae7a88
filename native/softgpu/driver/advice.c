/* Advice about managed memory, and where it was prefetched to.
 *
 * All of it is near everybody here, so advice changes nothing; it is kept for those who ask.
 * What was said of a range is a segment; nothing was said between segments. */
#include "advice.h"

#include "board.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

_Static_assert(BOARD_COUNT_MAX < 31, "devices and the host have a bit each");

struct segment {
	uintptr_t base, end;
	struct driver_advice advice;
};

static struct {
	pthread_mutex_t lock;
	struct segment *items;		/* sorted, never overlapping */
	size_t count, room;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const struct driver_advice nothing = {
	.preferred = { .type = CU_MEM_LOCATION_TYPE_INVALID },
	.prefetched = { .type = CU_MEM_LOCATION_TYPE_INVALID },
};

/* ---- segments; callers hold the lock ---- */

/* The first one that ends behind the address. */
static size_t segment_behind(uintptr_t address)
{
	size_t low = 0, high = table.count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (table.items[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* There is room: segments_cover has made it. */
static void segment_insert(size_t at, uintptr_t base, uintptr_t end, const struct driver_advice *advice)
{
	memmove(&table.items[at + 1], &table.items[at], (table.count - at) * sizeof *table.items);
	table.items[at] = (struct segment){ base, end, *advice };
	table.count++;
}

/* Make the address the border of two segments where it lies in one. */
static void segment_split(uintptr_t address)
{
	size_t at = segment_behind(address);
	struct segment *item = &table.items[at];

	if (at == table.count || item->base >= address)
		return;
	segment_insert(at + 1, address, item->end, &item->advice);
	table.items[at].end = address;
}

/* Segments for all of the range and nothing else; the first one's index, or -1 without
 * memory. */
static ssize_t segments_cover(uintptr_t base, uintptr_t end)
{
	/* A gap in front of each segment, two splits and one gap behind. */
	size_t need = 2 * table.count + 4, first, at;

	if (need > table.room) {
		struct segment *grown = realloc(table.items, 2 * need * sizeof *grown);

		if (!grown)
			return -1;
		table.items = grown;
		table.room = 2 * need;
	}
	segment_split(base);
	segment_split(end);
	for (first = at = segment_behind(base); base < end; at++) {
		uintptr_t next = at < table.count && table.items[at].base < end ?
			table.items[at].base : end;

		if (base < next)
			segment_insert(at, base, next, &nothing);
		base = table.items[at].end;
	}
	return (ssize_t)first;
}

static bool same_location(const CUmemLocation *a, const CUmemLocation *b)
{
	return a->type == b->type &&
	       (a->id == b->id || (a->type != CU_MEM_LOCATION_TYPE_DEVICE &&
				   a->type != CU_MEM_LOCATION_TYPE_HOST_NUMA));
}

static bool same_advice(const struct driver_advice *a, const struct driver_advice *b)
{
	return a->read_mostly == b->read_mostly && a->accessed_by == b->accessed_by &&
	       same_location(&a->preferred, &b->preferred) &&
	       same_location(&a->prefetched, &b->prefetched);
}

/* Segments that say the same become one, those that say nothing go. */
static void segments_tidy(void)
{
	size_t kept = 0;

	for (size_t at = 0; at < table.count; at++) {
		struct segment *item = &table.items[at], *last = kept ? &table.items[kept - 1] : NULL;

		if (same_advice(&item->advice, &nothing))
			continue;
		if (last && last->end == item->base && same_advice(&last->advice, &item->advice))
			last->end = item->end;
		else
			table.items[kept++] = *item;
	}
	table.count = kept;
}

void driver_advice_forget(uintptr_t base, size_t size)
{
	ssize_t at;

	pthread_mutex_lock(&table.lock);
	at = table.count ? segments_cover(base, base + size) : -1;
	if (at >= 0) {
		for (; (size_t)at < table.count && table.items[at].base < base + size; at++)
			table.items[at].advice = nothing;
		segments_tidy();
	}
	pthread_mutex_unlock(&table.lock);
}

/* ---- saying and asking ---- */

static void follow(struct driver_advice *advice, CUmem_advise what, const CUmemLocation *location)
{
	uint32_t bit = location->type == CU_MEM_LOCATION_TYPE_HOST ? DRIVER_ADVICE_HOST :
								     1u << (location->id & 31);

	switch (what) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		advice->read_mostly = what == CU_MEM_ADVISE_SET_READ_MOSTLY;
		break;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		advice->preferred = *location;
		break;
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		advice->preferred = nothing.preferred;
		break;
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
		advice->accessed_by |= bit;
		break;
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		advice->accessed_by &= ~bit;
		break;
	}
}

int driver_advice_say(uintptr_t base, uintptr_t end, unsigned what, const CUmemLocation *location)
{
	ssize_t at;

	pthread_mutex_lock(&table.lock);
	at = segments_cover(base, end);
	if (at < 0) {
		pthread_mutex_unlock(&table.lock);
		return -ENOMEM;
	}
	for (; (size_t)at < table.count && table.items[at].base < end; at++) {
		if (what)
			follow(&table.items[at].advice, (CUmem_advise)what, location);
		else
			table.items[at].advice.prefetched = *location;
	}
	segments_tidy();
	pthread_mutex_unlock(&table.lock);
	return 0;
}

struct driver_advice driver_advice_of(uintptr_t base, uintptr_t end)
{
	struct driver_advice all = nothing;
	bool first = true;

	pthread_mutex_lock(&table.lock);
	for (size_t at = segment_behind(base); base < end; at++) {
		const struct segment *item = &table.items[at];
		bool gap = at == table.count || item->base > base;
		const struct driver_advice *one = gap ? &nothing : &item->advice;

		if (first) {
			all = *one;
		} else {
			all.read_mostly &= one->read_mostly;
			all.accessed_by &= one->accessed_by;
			if (!same_location(&all.preferred, &one->preferred))
				all.preferred = nothing.preferred;
			if (!same_location(&all.prefetched, &one->prefetched))
				all.prefetched = nothing.prefetched;
		}
		if (gap)
			break;	/* of which nothing is true */
		first = false;
		base = item->end;
	}
	pthread_mutex_unlock(&table.lock);
	return all;
}
