/* Advice about managed memory, and where it was prefetched to.
 *
 * All of it is near everybody here, so advice changes nothing; it is kept for those who ask.
 * What was said of a range is a segment; nothing was said between segments. */
#include "driver_advice.h"

#include "driver_memory.h"
#include "driver_stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOST_BIT (1u << 31)	/* of accessed_by, beside a bit for each device */
#define NUMA_NODES_MAX 1024	/* Linux: MAX_NUMNODES at most */

_Static_assert(BOARD_COUNT_MAX < 31, "devices and the host have a bit each");

struct advice {
	bool read_mostly;
	CUmemLocation preferred, prefetched;	/* type INVALID: none */
	uint32_t accessed_by;
};

struct segment {
	uintptr_t base, end;
	struct advice advice;
};

static struct {
	pthread_mutex_t lock;
	struct segment *items;		/* sorted, never overlapping */
	size_t count, room;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const struct advice nothing = {
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
static void segment_insert(size_t at, uintptr_t base, uintptr_t end, const struct advice *advice)
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

static bool same_advice(const struct advice *a, const struct advice *b)
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

/* ---- ranges ---- */

/* Whole pages of the allocation, as advice is taken ("cuMemAdvise" of the driver API). */
static CUresult take_range(CUdeviceptr address, size_t bytes, uintptr_t *base, uintptr_t *end)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	struct driver_allocation allocation;
	CUresult result;

	if (!bytes || !driver_memory_find(address, &allocation) ||
	    allocation.kind != DRIVER_MEMORY_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_memory_check(address, bytes);
	if (result)
		return result;
	*base = address / page * page;
	*end = (address + bytes + page - 1) / page * page;
	if (*base < allocation.base)
		*base = allocation.base;
	if (*end > allocation.base + allocation.size)
		*end = allocation.base + allocation.size;
	return CUDA_SUCCESS;
}

/* A location that memory can be at; of the kinds of the host, all are one place. */
static CUresult check_location(CUmemLocation *location)
{
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return driver_device_at(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	case CU_MEM_LOCATION_TYPE_HOST:
		location->id = 0;
		return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return location->id >= 0 && location->id < NUMA_NODES_MAX ? CUDA_SUCCESS :
									    CUDA_ERROR_INVALID_VALUE;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		*location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST_NUMA };
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUmemLocation location_of_device(CUdevice device)
{
	if (device == CU_DEVICE_CPU)
		return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST };
	return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
}

/* ---- saying ---- */

static CUresult check_advice(CUmem_advise advice, CUmemLocation *location)
{
	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		return CUDA_SUCCESS;	/* of no location */
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		return check_location(location);
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		if (location->type != CU_MEM_LOCATION_TYPE_DEVICE &&
		    location->type != CU_MEM_LOCATION_TYPE_HOST)
			return CUDA_ERROR_INVALID_VALUE;
		return check_location(location);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

static void follow(struct advice *advice, CUmem_advise what, const CUmemLocation *location)
{
	uint32_t bit = location->type == CU_MEM_LOCATION_TYPE_HOST ? HOST_BIT :
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

/* `what`: an advice, or 0 for a prefetch. */
static CUresult say(CUdeviceptr address, size_t bytes, unsigned what, const CUmemLocation *location)
{
	uintptr_t base, end;
	CUresult result = take_range(address, bytes, &base, &end);
	ssize_t at;

	if (result)
		return result;
	pthread_mutex_lock(&table.lock);
	at = segments_cover(base, end);
	if (at < 0)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	for (; at >= 0 && (size_t)at < table.count && table.items[at].base < end; at++) {
		if (what)
			follow(&table.items[at].advice, (CUmem_advise)what, location);
		else
			table.items[at].advice.prefetched = *location;
	}
	segments_tidy();
	pthread_mutex_unlock(&table.lock);
	return result;
}

static CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (!result)
		result = check_advice(advice, &location);
	return result ? result : say(address, bytes, advice, &location);
}

DRIVER_EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
				   CUdevice device)
{
	return advise(address, bytes, advice, location_of_device(device));
}

DRIVER_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
				      CUmemLocation location)
{
	return advise(address, bytes, advice, location);
}

static CUresult prefetch(CUdeviceptr address, size_t bytes, CUmemLocation location, CUstream handle)
{
	struct CUstream_st *stream;
	CUresult result = driver_stream_enter(handle, &stream);

	if (!result)
		result = check_location(&location);
	return result ? result : say(address, bytes, 0, &location);
}

DRIVER_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device,
					  CUstream stream)
{
	return prefetch(address, bytes, location_of_device(device), stream);
}

DRIVER_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes,
					     CUmemLocation location, unsigned int flags,
					     CUstream stream)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(address, bytes, location, stream);
}

/* ---- asking ---- */

/* What is true of the whole range; locations that differ are none. */
static struct advice advice_of(uintptr_t base, uintptr_t end)
{
	struct advice all = nothing;
	bool first = true;

	for (size_t at = segment_behind(base); base < end; at++) {
		const struct segment *item = &table.items[at];
		bool gap = at == table.count || item->base > base;
		const struct advice *one = gap ? &nothing : &item->advice;

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
	return all;
}

static int32_t device_of_location(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id :
	       location->type == CU_MEM_LOCATION_TYPE_HOST   ? CU_DEVICE_CPU :
							       CU_DEVICE_INVALID;
}

static void list_accessors(int32_t *out, size_t count, uint32_t accessed_by)
{
	size_t at = 0;

	if (accessed_by & HOST_BIT)
		out[at++] = CU_DEVICE_CPU;
	for (int32_t device = 0; device < BOARD_COUNT_MAX && at < count; device++)
		if (accessed_by >> device & 1)
			out[at++] = device;
	while (at < count)
		out[at++] = CU_DEVICE_INVALID;
}

static CUresult write_attribute(void *out, size_t bytes, CUmem_range_attribute attribute,
				const struct advice *advice)
{
	int32_t value;

	if (!out || !bytes || bytes % sizeof value ||
	    (bytes != sizeof value && attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		value = advice->read_mostly;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		value = device_of_location(&advice->preferred);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		list_accessors(out, bytes / sizeof value, advice->accessed_by);
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		value = device_of_location(&advice->prefetched);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		value = (int32_t)advice->preferred.type;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		value = advice->preferred.id;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		value = (int32_t)advice->prefetched.type;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		value = advice->prefetched.id;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	memcpy(out, &value, sizeof value);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemRangeGetAttributes(void **out, size_t *sizes,
					       CUmem_range_attribute *attributes, size_t count,
					       CUdeviceptr address, size_t bytes)
{
	CUresult result = driver_ready();
	struct advice advice;
	uintptr_t base, end;

	if (result)
		return result;
	if (!out || !sizes || !attributes || !count)
		return CUDA_ERROR_INVALID_VALUE;
	result = take_range(address, bytes, &base, &end);
	if (result)
		return result;
	pthread_mutex_lock(&table.lock);
	advice = advice_of(base, end);
	pthread_mutex_unlock(&table.lock);
	for (size_t k = 0; !result && k < count; k++)
		result = write_attribute(out[k], sizes[k], attributes[k], &advice);
	return result;
}

DRIVER_EXPORT CUresult cuMemRangeGetAttribute(void *out, size_t size, CUmem_range_attribute attribute,
					      CUdeviceptr address, size_t bytes)
{
	return cuMemRangeGetAttributes(&out, &size, &attribute, 1, address, bytes);
}
