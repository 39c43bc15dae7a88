/* Memory apart from addresses: made, shared and released by handles. */
#include "../driver/virtual_memory.h"

#include "../driver/arena.h"
#include "../driver/handle.h"
#include "../driver/multicast.h"
#include "../driver/virtual.h"
#include "../driver/virtual_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULE DRIVER_ARENA_GRANULE
#define NUMA_NODES_MAX 1024		/* Linux: MAX_NUMNODES at most */

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
	if (driver_virtual_is_host(&properties->location))
		return check_host(properties);
	if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	return driver_device_of(properties->location.id, device);
}

DRIVER_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity,
						     const CUmemAllocationProp *properties,
						     CUmemAllocationGranularity_flags option)
{
	DRIVER_CALL;
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

DRIVER_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
				   const CUmemAllocationProp *properties,
				   unsigned long long flags)
{
	DRIVER_CALL;
	struct driver_device *device;
	struct memory *memory;
	CUresult result = driver_virtual_begin();

	if (result)
		return result;
	result = check_properties(properties, &device);
	if (result || !out || !size || size % GRANULE || flags)
		return driver_virtual_end(result ? result : CUDA_ERROR_INVALID_VALUE);
	memory = calloc(1, sizeof *memory);
	if (!memory || (device && board_memory_take(device->board, size))) {
		free(memory);
		return driver_virtual_end(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*memory = (struct memory){
		.device = device, .location = properties->location, .size = size,
		.counted = device != NULL, .shareable = properties->requestedHandleTypes,
		.fd = driver_virtual_file(device ? device->identity : NULL, size),
	};
	if (memory->fd < 0 || driver_virtual_memory_name(memory)) {
		driver_virtual_drop(memory);
		return driver_virtual_end(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*out = (uintptr_t)memory;
	return driver_virtual_end(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	DRIVER_CALL;
	struct memory *memory;
	CUresult result = driver_virtual_begin();

	if (result)
		return result;
	memory = driver_virtual_memory_of(handle);
	if (!memory)
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	if (!--memory->handles)
		driver_handle_remove(memory, DRIVER_KIND_MEMORY);
	driver_virtual_drop(memory);
	return driver_virtual_end(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out,
						   void *address)
{
	DRIVER_CALL;
	struct memory *memory;
	size_t offset;
	CUresult result = driver_virtual_begin();

	if (result)
		return result;
	memory = driver_virtual_memory_at((uintptr_t)address, 1, &offset);
	if (!out || !memory)
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	if (driver_virtual_memory_name(memory))
		return driver_virtual_end(CUDA_ERROR_OUT_OF_MEMORY);
	*out = (uintptr_t)memory;
	return driver_virtual_end(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
							      CUmemGenericAllocationHandle handle)
{
	DRIVER_CALL;
	struct memory *memory;
	CUresult result = driver_virtual_begin();

	if (result)
		return result;
	memory = driver_virtual_memory_of(handle);
	if (!properties || !memory || memory->team)
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	*properties = (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = memory->shareable,
		.location = memory->location,
	};
	return driver_virtual_end(CUDA_SUCCESS);
}

/* ---- sharing ---- */

DRIVER_EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
						    CUmemAllocationHandleType type,
						    unsigned long long flags)
{
	DRIVER_CALL;
	struct memory *memory;
	CUresult result = driver_virtual_begin();
	int fd;

	if (result)
		return result;
	memory = driver_virtual_memory_of(handle);
	if (!out || !memory || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    memory->shareable != type)
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return driver_virtual_end(CUDA_ERROR_OUT_OF_MEMORY);
	*(int *)out = fd;
	return driver_virtual_end(CUDA_SUCCESS);
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
	DRIVER_CALL;
	struct memory *memory;
	struct stat status;
	CUresult result = driver_virtual_begin();
	int fd = (int)(uintptr_t)handle;

	if (result)
		return result;
	if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	if (driver_virtual_is_team(fd))
		return driver_virtual_end(import_team(fd, out));
	memory = calloc(1, sizeof *memory);
	if (!memory)
		return driver_virtual_end(CUDA_ERROR_OUT_OF_MEMORY);
	if (!driver_virtual_owner_of(fd, &memory->device, &memory->location) || fstat(fd, &status) || !status.st_size || status.st_size % GRANULE) {
		free(memory);
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	}
	memory->size = (size_t)status.st_size;
	memory->shareable = type;
	memory->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (memory->fd < 0 || driver_virtual_memory_name(memory)) {
		if (memory->fd >= 0)
			close(memory->fd);
		free(memory);
		return driver_virtual_end(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*out = (uintptr_t)memory;
	return driver_virtual_end(CUDA_SUCCESS);
}
