#define _GNU_SOURCE
#include "virtual.h"
#include "log.h"

#include "memory.h"
#include "multicast.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

struct range {
	struct range *next;
	uintptr_t address;
	size_t size;
};

static struct {
	struct range *ranges;
	struct driver_mapping *mappings;
} space;

static _Atomic unsigned multicast_mappings;

/* ---- memory, and multicast objects in its place; all with the lock ---- */

void driver_virtual_drop(struct memory *memory)
{
	struct driver_team *team = memory->team;

	if (driver_virtual_memory_drop(memory) && team)
		driver_team_drop(team);
}

CUresult driver_virtual_add_team(struct driver_team *team, CUmemGenericAllocationHandle *out)
{
	struct memory *memory = calloc(1, sizeof *memory);

	if (!memory) {
		driver_team_drop(team);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*memory = (struct memory){
		.team = team, .size = driver_team_size(team), .fd = driver_team_file(team),
		.shareable = driver_team_is_shareable(team) ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
							    : CU_MEM_HANDLE_TYPE_NONE,
	};
	if (driver_virtual_memory_name(memory)) {
		driver_virtual_drop(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = (uintptr_t)memory;
	return CUDA_SUCCESS;
}

/* ---- addresses; all with the lock ---- */

static bool close_addresses(uintptr_t address, size_t size)
{
	return mmap((void *)address, size, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

bool driver_virtual_is_reserved(uintptr_t address, size_t size)
{
	for (struct range *range = space.ranges; range; range = range->next) {
		if (address - range->address < range->size &&
		    size <= range->size - (address - range->address))
			return true;
	}
	return false;
}

struct driver_mapping *driver_virtual_mapping_within(uintptr_t address, size_t size)
{
	for (struct driver_mapping *mapping = space.mappings; mapping; mapping = mapping->next) {
		if (mapping->address < address + size &&
		    address < mapping->address + mapping->size)
			return mapping;
	}
	return NULL;
}

bool driver_virtual_is_covered(uintptr_t address, size_t size)
{
	while (size) {
		struct driver_mapping *mapping = driver_virtual_mapping_within(address, 1);

		if (!mapping || mapping->address != address || mapping->size > size)
			return false;
		address += mapping->size;
		size -= mapping->size;
	}
	return true;
}

struct memory *driver_virtual_memory_at(uintptr_t address, size_t size, size_t *offset)
{
	const struct driver_mapping *mapping = driver_virtual_mapping_within(address, 1);

	if (!mapping || size > mapping->size - (address - mapping->address))
		return NULL;
	*offset = mapping->offset + (address - mapping->address);
	return mapping->memory;
}

CUresult driver_virtual_reserve(size_t size, size_t align, uintptr_t wanted, CUdeviceptr *out)
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

bool driver_virtual_unreserve(uintptr_t address, size_t size)
{
	struct range **link, *range;

	for (link = &space.ranges; (range = *link); link = &range->next) {
		if (range->address == address && range->size == size)
			break;
	}
	if (!range || driver_virtual_mapping_within(address, size))
		return false;
	*link = range->next;
	munmap((void *)range->address, range->size);
	free(range);
	return true;
}

/* ---- mapping; all with the lock ---- */

CUresult driver_virtual_map(uintptr_t address, size_t size, size_t offset, struct memory *memory)
{
	struct driver_allocation allocation = { .base = address, .size = size,
						.kind = DRIVER_MEMORY_VIRTUAL };
	struct driver_mapping *mapping = calloc(1, sizeof *mapping);
	CUresult result;

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!memory->team && mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd,
				  (off_t)offset) == MAP_FAILED) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	allocation.multicast = memory->team != NULL;
	allocation.device = memory->team ? driver_team_device(memory->team) : memory->device;
	result = driver_memory_remember(&allocation);
	if (result) {
		close_addresses(address, size);
		free(mapping);
		return result;
	}
	*mapping = (struct driver_mapping){ .next = space.mappings, .address = address, .size = size,
					    .offset = offset, .memory = memory };
	space.mappings = mapping;
	memory->mappings++;
	multicast_mappings += memory->team != NULL;
	return CUDA_SUCCESS;
}

void driver_virtual_unmap(struct driver_mapping *mapping)
{
	struct driver_mapping **link = &space.mappings;

	while (*link != mapping)
		link = &(*link)->next;
	*link = mapping->next;
	driver_memory_give(mapping->address);
	close_addresses(mapping->address, mapping->size);
	multicast_mappings -= mapping->memory->team != NULL;
	mapping->memory->mappings--;
	driver_virtual_drop(mapping->memory);
	free(mapping);
}

void driver_virtual_apply_access(struct driver_mapping *mapping)
{
	bool open = false, mapped;

	for (unsigned i = 0; i < BOARD_COUNT_MAX; i++)
		open = open || mapping->access[i];
	mapped = open || mapping->host_access;
	if (!mapping->memory->team)
		mprotect((void *)mapping->address, mapping->size, mapped ? PROT_READ | PROT_WRITE : PROT_NONE);
	driver_memory_set_open(mapping->address, open);
}

bool driver_virtual_may_access(uintptr_t address, CUdevice ordinal)
{
	const struct driver_mapping *mapping;
	bool may;

	driver_virtual_lock();
	mapping = driver_virtual_mapping_within(address, 1);
	may = mapping && mapping->access[ordinal];
	driver_virtual_unlock();
	return may;
}

CUmemAllocationHandleType driver_virtual_shareable_at(uintptr_t address)
{
	CUmemAllocationHandleType shareable;
	const struct memory *memory;
	size_t offset;

	driver_virtual_lock();
	memory = driver_virtual_memory_at(address, 1, &offset);
	shareable = memory ? memory->shareable : CU_MEM_HANDLE_TYPE_NONE;
	driver_virtual_unlock();
	return shareable;
}

/* ---- multicast addresses ---- */

/* With the lock: where an address leads, as far as its mapping goes. */
static const char *find_within(const struct driver_mapping *mapping, uint64_t address, struct engine_replicas *found)
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
	const struct driver_mapping *mapping;

	driver_virtual_lock();
	mapping = driver_virtual_mapping_within(address, 1);
	if (mapping && mapping->memory->team)
		why = mapping->access[context->device->ordinal] ? find_within(mapping, address, found)
								: "the device has no access to it (cuMemSetAccess)";
	driver_virtual_unlock();
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
	const struct driver_mapping *mapping;
	const char *why = NULL;
	size_t now;

	for (size_t at = 0; at < bytes; at += now) {
		now = bytes - at;
		found = (struct engine_replicas){ .base = to + at, .bytes = now, .count = 1,
						  .memory = { (char *)(to + at) } };
		if (atomic_load_explicit(&multicast_mappings, memory_order_relaxed)) {
			driver_virtual_lock();
			mapping = driver_virtual_mapping_within(to + at, 1);
			if (mapping && mapping->memory->team)
				why = find_within(mapping, to + at, &found);
			driver_virtual_unlock();
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
