#define _GNU_SOURCE
#include "driver_virtual_memory.h"

#include "driver_arena.h"
#include "driver_memory.h"
#include "driver_multicast.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Virtual memory management: addresses, and which memory lies where.
 *
 * Memory is a memfd, so that it can be mapped at several places and given to
 * another process (driver_virtual_file.c).  A board's counts with the process that made it, as
 * long as that uses it.  The host's lies where it is first touched, whatever
 * NUMA node was asked for.
 *
 * A multicast object has a handle as memory does, and is mapped as memory is, but
 * its addresses stay closed: multimem, copies and fills reach what is bound there
 * (driver_multicast.c).
 */

#define GRANULE DRIVER_ARENA_GRANULE
#define ACCESS_ALL CU_MEM_ACCESS_FLAGS_PROT_READWRITE

struct mapping {
	struct mapping *next;
	uintptr_t address;
	size_t size, offset;
	struct memory *memory;
	unsigned char access[BOARD_COUNT_MAX];	/* CUmemAccess_flags, by ordinal */
	unsigned char host_access;
};

struct range {
	struct range *next;
	uintptr_t address;
	size_t size;
};

static struct {
	pthread_mutex_t lock;
	struct range *ranges;
	struct mapping *mappings;
} space = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Atomic unsigned multicast_mappings;

static CUresult begin(void)
{
	CUresult result = driver_ready();

	if (!result)
		pthread_mutex_lock(&space.lock);
	return result;
}

static CUresult end(CUresult result)
{
	pthread_mutex_unlock(&space.lock);
	return result;
}

CUresult driver_virtual_begin(void)
{
	return begin();
}

CUresult driver_virtual_end(CUresult result)
{
	return end(result);
}

/* ---- addresses; all with the lock ---- */

static bool close_addresses(uintptr_t address, size_t size)
{
	return mmap((void *)address, size, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

static bool is_reserved(uintptr_t address, size_t size)
{
	for (struct range *range = space.ranges; range; range = range->next) {
		if (address - range->address < range->size &&
		    size <= range->size - (address - range->address))
			return true;
	}
	return false;
}

static struct mapping *mapping_within(uintptr_t address, size_t size)
{
	for (struct mapping *mapping = space.mappings; mapping; mapping = mapping->next) {
		if (mapping->address < address + size &&
		    address < mapping->address + mapping->size)
			return mapping;
	}
	return NULL;
}

/* Do whole mappings cover these addresses, without a gap? */
static bool is_covered(uintptr_t address, size_t size)
{
	while (size) {
		struct mapping *mapping = mapping_within(address, 1);

		if (!mapping || mapping->address != address || mapping->size > size)
			return false;
		address += mapping->size;
		size -= mapping->size;
	}
	return true;
}

struct memory *driver_virtual_memory_at(uintptr_t address, size_t size, size_t *offset)
{
	const struct mapping *mapping = mapping_within(address, 1);

	if (!mapping || size > mapping->size - (address - mapping->address))
		return NULL;
	*offset = mapping->offset + (address - mapping->address);
	return mapping->memory;
}

static CUresult reserve(CUdeviceptr *out, size_t size, size_t align, uintptr_t wanted)
{
	struct range *range = malloc(sizeof *range);
	uintptr_t start;
	char *got;

	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (wanted && wanted % align == 0) {
		got = mmap((void *)wanted, size, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
		if (got == (char *)wanted)
			goto out_reserved;
		if (got != MAP_FAILED)
			munmap(got, size);
	}
	/* The wish is a hint: anywhere else will do. */
	got = mmap(NULL, size + align, PROT_NONE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (got == MAP_FAILED) {
		free(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	start = ((uintptr_t)got + align - 1) / align * align;
	if (start > (uintptr_t)got)
		munmap(got, start - (uintptr_t)got);
	munmap((void *)(start + size), align - (start - (uintptr_t)got));
	got = (char *)start;
out_reserved:
	*range = (struct range){ space.ranges, (uintptr_t)got, size };
	space.ranges = range;
	*out = (CUdeviceptr)got;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t align,
					   CUdeviceptr wanted, unsigned long long flags)
{
	CUresult result = begin();

	if (result)
		return result;
	if (align < GRANULE)
		align = GRANULE;
	if (!out || !size || size % GRANULE || align & (align - 1) || flags ||
	    size > SIZE_MAX / 2 || align > SIZE_MAX / 4)
		return end(CUDA_ERROR_INVALID_VALUE);
	return end(reserve(out, size, align, wanted));
}

DRIVER_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	struct range **link, *range;
	CUresult result = begin();

	if (result)
		return result;
	for (link = &space.ranges; (range = *link); link = &range->next) {
		if (range->address == address && range->size == size)
			break;
	}
	if (!range || mapping_within(address, size))
		return end(CUDA_ERROR_INVALID_VALUE);
	*link = range->next;
	munmap((void *)range->address, range->size);
	free(range);
	return end(CUDA_SUCCESS);
}

/* ---- mapping ---- */

/* A multicast object is mapped when all its devices are there. */
static CUresult await_team(CUmemGenericAllocationHandle handle)
{
	CUresult result = begin();
	struct driver_team *team;
	struct memory *memory;

	if (result)
		return result;
	memory = driver_virtual_memory_of(handle);
	team = memory ? memory->team : NULL;
	if (team)
		memory->mappings++;
	end(CUDA_SUCCESS);
	if (!team)
		return CUDA_SUCCESS;
	driver_team_wait(team);
	begin();
	memory->mappings--;
	/* Another thread may have released it meanwhile. */
	driver_virtual_memory_drop(memory);
	return end(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
				CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct driver_allocation allocation = { .base = address, .size = size,
						.kind = DRIVER_MEMORY_VIRTUAL };
	struct mapping *mapping;
	struct memory *memory;
	CUresult result = await_team(handle);

	if (!result)
		result = begin();
	if (result)
		return result;
	memory = driver_virtual_memory_of(handle);
	if (!memory || flags || !size || (address | size | offset) % GRANULE ||
	    offset > memory->size || size > memory->size - offset ||
	    !is_reserved(address, size) || mapping_within(address, size))
		return end(CUDA_ERROR_INVALID_VALUE);
	mapping = calloc(1, sizeof *mapping);
	if (!mapping)
		return end(CUDA_ERROR_OUT_OF_MEMORY);
	if (!memory->team && mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd,
				  (off_t)offset) == MAP_FAILED) {
		free(mapping);
		return end(CUDA_ERROR_OUT_OF_MEMORY);
	}
	allocation.multicast = memory->team != NULL;
	allocation.device = memory->team ? driver_team_device(memory->team) : memory->device;
	result = driver_memory_remember(&allocation);
	if (result) {
		close_addresses(address, size);
		free(mapping);
		return end(result);
	}
	*mapping = (struct mapping){ .next = space.mappings, .address = address, .size = size,
				     .offset = offset, .memory = memory };
	space.mappings = mapping;
	memory->mappings++;
	multicast_mappings += memory->team != NULL;
	return end(CUDA_SUCCESS);
}

static void unmap(struct mapping *mapping)
{
	struct mapping **link = &space.mappings;

	while (*link != mapping)
		link = &(*link)->next;
	*link = mapping->next;
	driver_memory_give(mapping->address);
	close_addresses(mapping->address, mapping->size);
	multicast_mappings -= mapping->memory->team != NULL;
	mapping->memory->mappings--;
	driver_virtual_memory_drop(mapping->memory);
	free(mapping);
}

/* What is queued may use the addresses: it is waited for, as by cuMemFree. */
DRIVER_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	driver_context_drain_all();
	result = begin();
	if (result)
		return result;
	if (!size || !is_covered(address, size))
		return end(CUDA_ERROR_INVALID_VALUE);
	for (uintptr_t at = address; at < address + size; ) {
		struct mapping *mapping = mapping_within(at, 1);

		at += mapping->size;
		unmap(mapping);
	}
	return end(CUDA_SUCCESS);
}

static unsigned char *access_of(struct mapping *mapping, const CUmemLocation *location)
{
	return driver_virtual_is_host(location) ? &mapping->host_access : &mapping->access[location->id];
}

/* All devices are in one process: memory that one of them may use is open. */
static void apply_access(struct mapping *mapping)
{
	bool open = false, mapped;

	for (unsigned i = 0; i < BOARD_COUNT_MAX; i++)
		open = open || mapping->access[i];
	mapped = open || mapping->host_access;
	if (!mapping->memory->team)
		mprotect((void *)mapping->address, mapping->size, mapped ? PROT_READ | PROT_WRITE : PROT_NONE);
	driver_memory_set_open(mapping->address, open);
}

static CUresult check_access(const CUmemAccessDesc *list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!driver_virtual_is_host(&list[i].location)) {
			if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
				return CUDA_ERROR_INVALID_VALUE;
			if (!driver_device_at(list[i].location.id))
				return CUDA_ERROR_INVALID_DEVICE;
		}
		if (list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
			return driver_unsupported("read-only access in cuMemSetAccess");
		if (list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && list[i].flags != ACCESS_ALL)
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

/* With the lock.  The host has no access to memory of devices, nor to a multicast object. */
static CUresult check_host_access(uintptr_t address, size_t size, const CUmemAccessDesc *list,
				  size_t count)
{
	bool wanted = false;

	for (size_t i = 0; i < count; i++)
		wanted = wanted || driver_virtual_is_host(&list[i].location);
	for (uintptr_t at = address; wanted && at < address + size; ) {
		const struct mapping *mapping = mapping_within(at, 1);

		if (mapping->memory->device || mapping->memory->team)
			return driver_unsupported("access of the host to memory of a device in cuMemSetAccess");
		at += mapping->size;
	}
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size,
				      const CUmemAccessDesc *list, size_t count)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!size || !list || !count)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_access(list, count);
	if (result)
		return result;
	driver_context_drain_all();
	result = begin();
	if (result)
		return result;
	if (!is_covered(address, size))
		return end(CUDA_ERROR_INVALID_VALUE);
	result = check_host_access(address, size, list, count);
	if (result)
		return end(result);
	for (uintptr_t at = address; at < address + size; ) {
		struct mapping *mapping = mapping_within(at, 1);

		for (size_t i = 0; i < count; i++)
			*access_of(mapping, &list[i].location) = (unsigned char)list[i].flags;
		apply_access(mapping);
		at += mapping->size;
	}
	return end(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
				      CUdeviceptr address)
{
	struct mapping *mapping;
	CUresult result = begin();

	if (result)
		return result;
	mapping = mapping_within(address, 1);
	if (!flags || !location || !mapping ||
	    (location->type != CU_MEM_LOCATION_TYPE_DEVICE && !driver_virtual_is_host(location)))
		return end(CUDA_ERROR_INVALID_VALUE);
	if (!driver_virtual_is_host(location) && !driver_device_at(location->id))
		return end(CUDA_ERROR_INVALID_DEVICE);
	*flags = *access_of(mapping, location);
	return end(CUDA_SUCCESS);
}

bool driver_virtual_may_access(uintptr_t address, CUdevice ordinal)
{
	const struct mapping *mapping;
	bool may;

	pthread_mutex_lock(&space.lock);
	mapping = mapping_within(address, 1);
	may = mapping && mapping->access[ordinal];
	pthread_mutex_unlock(&space.lock);
	return may;
}

/* ---- multicast addresses ---- */

/* With the lock: where an address leads, as far as its mapping goes. */
static const char *find_within(const struct mapping *mapping, uint64_t address, struct engine_replicas *found)
{
	uint64_t last = mapping->offset + mapping->size;
	const char *why = driver_team_find(mapping->memory->team, mapping->offset + (address - mapping->address), found);

	if (why)
		return why;
	if (found->base < mapping->offset) {
		for (unsigned i = 0; i < found->count; i++)
			found->memory[i] += mapping->offset - found->base;
		found->bytes -= mapping->offset - found->base;
		found->base = mapping->offset;
	}
	if (found->bytes > last - found->base)
		found->bytes = last - found->base;
	found->base += mapping->address - mapping->offset;
	return NULL;
}

static const char *find(void *opaque, uint64_t address, struct engine_replicas *found)
{
	const struct CUctx_st *context = opaque;
	const char *why = "no multicast object is mapped there";
	const struct mapping *mapping;

	pthread_mutex_lock(&space.lock);
	mapping = mapping_within(address, 1);
	if (mapping && mapping->memory->team)
		why = mapping->access[context->device->ordinal] ? find_within(mapping, address, found)
								: "the device has no access to it (cuMemSetAccess)";
	pthread_mutex_unlock(&space.lock);
	return why;
}

void driver_virtual_multicast(struct CUctx_st *context, struct engine_multicast *multicast)
{
	*multicast = (struct engine_multicast){ .find = find, .opaque = context };
}

CUresult driver_virtual_put(uintptr_t to, size_t bytes,
			    void (*put)(const void *opaque, char *memory, size_t at, size_t bytes),
			    const void *opaque)
{
	struct engine_replicas found;
	const struct mapping *mapping;
	const char *why = NULL;
	size_t now;

	for (size_t at = 0; at < bytes; at += now) {
		now = bytes - at;
		found = (struct engine_replicas){ .base = to + at, .bytes = now, .count = 1,
						  .memory = { (char *)(to + at) } };
		if (atomic_load_explicit(&multicast_mappings, memory_order_relaxed)) {
			pthread_mutex_lock(&space.lock);
			mapping = mapping_within(to + at, 1);
			if (mapping && mapping->memory->team)
				why = find_within(mapping, to + at, &found);
			pthread_mutex_unlock(&space.lock);
		}
		if (why) {
			driver_say("a copy or fill to %#zx: %s", (size_t)(to + at), why);
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		}
		if (now > found.bytes - (to + at - found.base))
			now = found.bytes - (to + at - found.base);
		for (unsigned i = 0; i < found.count; i++)
			put(opaque, found.memory[i] + (to + at - found.base), at, now);
	}
	return CUDA_SUCCESS;
}
