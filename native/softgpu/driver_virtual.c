#define _GNU_SOURCE
#include "driver_virtual.h"

#include "driver_arena.h"
#include "driver_handle.h"
#include "driver_memory.h"
#include "driver_multicast.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Virtual memory management: addresses, memory, and which lies where.
 *
 * Memory is a memfd, so that it can be mapped at several places and given to
 * another process.  Its name carries the UUID of the board that it belongs to,
 * or says that it is the host's, and it is sealed against another size: who
 * imports it can trust it.  A board's counts with the process that made it, as
 * long as that uses it.  The host's lies where it is first touched, whatever
 * NUMA node was asked for.
 *
 * A multicast object has a handle as memory does, and is mapped as memory is, but
 * its addresses stay closed: multimem, copies and fills reach what is bound there
 * (driver_multicast.c).
 */

#define GRANULE DRIVER_ARENA_GRANULE
#define MEMORY_NAME "farbus-softgpu-"
#define HOST_NAME "host"
#define NUMA_NODES_MAX 1024		/* Linux: MAX_NUMNODES at most */
#define MEMORY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define ACCESS_ALL CU_MEM_ACCESS_FLAGS_PROT_READWRITE

struct memory {
	struct driver_team *team;	/* of a multicast object; NULL: of memory */
	struct driver_device *device;	/* NULL: the host's */
	CUmemLocation location;
	size_t size;
	int fd;
	unsigned handles;		/* that the program may release */
	unsigned mappings;
	unsigned parts;			/* that are bound to multicast objects */
	bool counted;			/* with the board, by this process */
	CUmemAllocationHandleType shareable;
};

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

/* ---- memory; all with the lock ---- */

static void memory_drop(struct memory *memory)
{
	if (memory->handles || memory->mappings || memory->parts)
		return;
	if (memory->team)
		driver_team_drop(memory->team);
	else if (memory->fd >= 0)
		close(memory->fd);
	if (memory->counted)
		board_memory_give(memory->device->board, memory->size);
	free(memory);
}

static struct memory *memory_of(CUmemGenericAllocationHandle handle)
{
	struct memory *memory = (struct memory *)(uintptr_t)handle;

	return driver_handle_is(memory, DRIVER_KIND_MEMORY) ? memory : NULL;
}

struct driver_team *driver_virtual_team_of(CUmemGenericAllocationHandle handle)
{
	struct memory *memory = memory_of(handle);

	return memory ? memory->team : NULL;
}

static CUresult memory_add_handle(struct memory *memory)
{
	if (!memory->handles && driver_handle_add(memory, DRIVER_KIND_MEMORY))
		return CUDA_ERROR_OUT_OF_MEMORY;
	memory->handles++;
	return CUDA_SUCCESS;
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
	if (memory_add_handle(memory)) {
		memory_drop(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = (uintptr_t)memory;
	return CUDA_SUCCESS;
}

static CUresult hold(struct memory *memory, size_t offset, size_t size, struct driver_part *part)
{
	if (memory->team || !memory->device || offset > memory->size || size > memory->size - offset)
		return CUDA_ERROR_INVALID_VALUE;
	*part = (struct driver_part){
		.memory = memory, .device = memory->device, .offset = offset, .shareable = memory->shareable,
		.fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0),
	};
	if (part->fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memory->parts++;
	return CUDA_SUCCESS;
}

CUresult driver_virtual_hold(CUmemGenericAllocationHandle handle, size_t offset, size_t size,
			     struct driver_part *part)
{
	struct memory *memory = memory_of(handle);

	return memory ? hold(memory, offset, size, part) : CUDA_ERROR_INVALID_VALUE;
}

CUresult driver_virtual_hold_at(uintptr_t address, size_t size, struct driver_part *part)
{
	const struct mapping *mapping = mapping_within(address, 1);

	if (!mapping || size > mapping->size - (address - mapping->address))
		return CUDA_ERROR_INVALID_VALUE;
	return hold(mapping->memory, mapping->offset + (address - mapping->address), size, part);
}

void driver_virtual_let_go(struct driver_part *part)
{
	close(part->fd);
	if (!part->memory)
		return;
	part->memory->parts--;
	memory_drop(part->memory);
}

static bool is_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

/* Of the host's memory only that of a NUMA node can be shared (cuMemCreate). */
static CUresult check_host(const CUmemAllocationProp *properties)
{
	if (properties->location.type == CU_MEM_LOCATION_TYPE_HOST)
		return properties->requestedHandleTypes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	return properties->location.id >= 0 && properties->location.id < NUMA_NODES_MAX ?
		       CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* *device is NULL for the host. */
static CUresult check_properties(const CUmemAllocationProp *properties,
				 struct driver_device **device)
{
	if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
	    properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return driver_unsupported("a shareable handle that is no file descriptor");
	*device = NULL;
	if (is_host(&properties->location))
		return check_host(properties);
	if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	return driver_device_of(properties->location.id, device);
}

DRIVER_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity,
						     const CUmemAllocationProp *properties,
						     CUmemAllocationGranularity_flags option)
{
	struct driver_device *device;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
			     option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return CUDA_ERROR_INVALID_VALUE;
	result = check_properties(properties, &device);
	if (!result)
		*granularity = GRANULE;
	return result;
}

int driver_virtual_file(const struct board_identity *identity, size_t size)
{
	char uuid[41] = "GPU-" HOST_NAME;

	if (identity)
		board_uuid_format(identity->uuid, uuid);
	return driver_virtual_file_of(uuid + 4, size);
}

int driver_virtual_file_of(const char *owner, size_t size)
{
	char name[64];
	int fd;

	snprintf(name, sizeof name, MEMORY_NAME "%s", owner);
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd >= 0 && (ftruncate(fd, (off_t)size) || fcntl(fd, F_ADD_SEALS, MEMORY_SEALS))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

DRIVER_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
				   const CUmemAllocationProp *properties,
				   unsigned long long flags)
{
	struct driver_device *device;
	struct memory *memory;
	CUresult result = begin();

	if (result)
		return result;
	result = check_properties(properties, &device);
	if (result || !out || !size || size % GRANULE || flags)
		return end(result ? result : CUDA_ERROR_INVALID_VALUE);
	memory = calloc(1, sizeof *memory);
	if (!memory || (device && board_memory_take(device->board, size))) {
		free(memory);
		return end(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*memory = (struct memory){
		.device = device, .location = properties->location, .size = size,
		.counted = device != NULL, .shareable = properties->requestedHandleTypes,
		.fd = driver_virtual_file(device ? device->identity : NULL, size),
	};
	if (memory->fd < 0 || memory_add_handle(memory)) {
		memory_drop(memory);
		return end(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*out = (uintptr_t)memory;
	return end(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct memory *memory;
	CUresult result = begin();

	if (result)
		return result;
	memory = memory_of(handle);
	if (!memory)
		return end(CUDA_ERROR_INVALID_VALUE);
	if (!--memory->handles)
		driver_handle_remove(memory, DRIVER_KIND_MEMORY);
	memory_drop(memory);
	return end(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out,
						   void *address)
{
	struct mapping *mapping;
	CUresult result = begin();

	if (result)
		return result;
	mapping = mapping_within((uintptr_t)address, 1);
	if (!out || !mapping)
		return end(CUDA_ERROR_INVALID_VALUE);
	result = memory_add_handle(mapping->memory);
	if (!result)
		*out = (uintptr_t)mapping->memory;
	return end(result);
}

DRIVER_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
							      CUmemGenericAllocationHandle handle)
{
	struct memory *memory;
	CUresult result = begin();

	if (result)
		return result;
	memory = memory_of(handle);
	if (!properties || !memory || memory->team)
		return end(CUDA_ERROR_INVALID_VALUE);
	*properties = (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = memory->shareable,
		.location = memory->location,
	};
	return end(CUDA_SUCCESS);
}

/* ---- sharing ---- */

DRIVER_EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
						    CUmemAllocationHandleType type,
						    unsigned long long flags)
{
	struct memory *memory;
	CUresult result = begin();
	int fd;

	if (result)
		return result;
	memory = memory_of(handle);
	if (!out || !memory || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    memory->shareable != type)
		return end(CUDA_ERROR_INVALID_VALUE);
	fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return end(CUDA_ERROR_OUT_OF_MEMORY);
	*(int *)out = fd;
	return end(CUDA_SUCCESS);
}

/* What a file of ours is called behind MEMORY_NAME; false for any other file. */
static bool memory_name_of(int fd, char owner[96])
{
	static const char before[] = "/memfd:" MEMORY_NAME, behind[] = " (deleted)";
	char path[40], name[96];
	ssize_t length;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || (seals & MEMORY_SEALS) != MEMORY_SEALS)
		return false;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	length = readlink(path, name, sizeof name - 1) - (ssize_t)strlen(behind);
	if (length < (ssize_t)strlen(before) || strncmp(name, before, strlen(before)) ||
	    strncmp(name + length, behind, strlen(behind)))
		return false;
	name[length] = '\0';
	strcpy(owner, name + strlen(before));
	return true;
}

static struct driver_device *device_named(const char *owner)
{
	char uuid[41];

	for (int i = 0; i < driver_device_count(); i++) {
		board_uuid_format(driver_device_at(i)->identity->uuid, uuid);
		if (!strcmp(owner, uuid + 4))
			return driver_device_at(i);
	}
	return NULL;
}

bool driver_virtual_is_team(int fd)
{
	char owner[96];

	return memory_name_of(fd, owner) && !strcmp(owner, DRIVER_VIRTUAL_TEAM);
}

bool driver_virtual_is_memory(int fd)
{
	char owner[96];

	return memory_name_of(fd, owner) && strcmp(owner, DRIVER_VIRTUAL_TEAM) != 0;
}

struct driver_device *driver_virtual_device_of(int fd)
{
	char owner[96];

	return memory_name_of(fd, owner) ? device_named(owner) : NULL;
}

/* Whose memory a file is: a visible device's or the host's. */
static bool locate(int fd, struct driver_device **device, CUmemLocation *location)
{
	char owner[96];

	if (!memory_name_of(fd, owner))
		return false;
	*device = device_named(owner);
	*location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST_NUMA };
	if (*device)
		*location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_DEVICE, (*device)->ordinal };
	return *device || !strcmp(owner, HOST_NAME);
}

static CUresult import_team(int fd, CUmemGenericAllocationHandle *out)
{
	struct driver_team *team = driver_team_import(fd);

	return team ? driver_virtual_add_team(team, out) : CUDA_ERROR_OUT_OF_MEMORY;
}

DRIVER_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out,
						      void *handle,
						      CUmemAllocationHandleType type)
{
	struct memory *memory;
	struct stat status;
	CUresult result = begin();
	int fd = (int)(uintptr_t)handle;

	if (result)
		return result;
	if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return end(CUDA_ERROR_INVALID_VALUE);
	if (driver_virtual_is_team(fd))
		return end(import_team(fd, out));
	memory = calloc(1, sizeof *memory);
	if (!memory)
		return end(CUDA_ERROR_OUT_OF_MEMORY);
	if (!locate(fd, &memory->device, &memory->location) || fstat(fd, &status) || !status.st_size || status.st_size % GRANULE) {
		free(memory);
		return end(CUDA_ERROR_INVALID_VALUE);
	}
	memory->size = (size_t)status.st_size;
	memory->shareable = type;
	memory->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (memory->fd < 0 || memory_add_handle(memory)) {
		if (memory->fd >= 0)
			close(memory->fd);
		free(memory);
		return end(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*out = (uintptr_t)memory;
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
	memory = memory_of(handle);
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
	memory_drop(memory);
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
	memory = memory_of(handle);
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
	memory_drop(mapping->memory);
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
	return is_host(location) ? &mapping->host_access : &mapping->access[location->id];
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
		if (!is_host(&list[i].location)) {
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
		wanted = wanted || is_host(&list[i].location);
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
	    (location->type != CU_MEM_LOCATION_TYPE_DEVICE && !is_host(location)))
		return end(CUDA_ERROR_INVALID_VALUE);
	if (!is_host(location) && !driver_device_at(location->id))
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
