/* Multicast objects: made, joined by devices, and what these bind. */
#include "../driver/multicast.h"

#include "../driver/arena.h"
#include "../driver/context_life.h"
#include "../driver/memory.h"
#include "../driver/pool.h"
#include "../driver/virtual.h"

#include <fcntl.h>
#include <unistd.h>

#define GRANULE DRIVER_ARENA_GRANULE

/* The team of a handle, or NULL: it is no multicast object. */
static struct driver_team *team_of(CUmemGenericAllocationHandle handle)
{
	struct memory *memory = driver_virtual_memory_of(handle);

	return memory ? memory->team : NULL;
}

static CUresult check_properties(const CUmulticastObjectProp *properties)
{
	if (!properties || !properties->numDevices || properties->numDevices > BOARD_COUNT_MAX || properties->flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->handleTypes & ~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return driver_unsupported("a multicast object whose shareable handle is no file descriptor");
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *properties,
						 CUmulticastGranularity_flags option)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (!result)
		result = check_properties(properties);
	if (result)
		return result;
	if (!granularity || (option != CU_MULTICAST_GRANULARITY_MINIMUM &&
			     option != CU_MULTICAST_GRANULARITY_RECOMMENDED))
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = GRANULE;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *properties)
{
	DRIVER_CALL;
	CUresult result = driver_virtual_begin();
	struct driver_team *team;

	if (result)
		return result;
	result = check_properties(properties);
	if (result || !out || !properties->size || properties->size % GRANULE)
		return driver_virtual_end(result ? result : CUDA_ERROR_INVALID_VALUE);
	team = driver_team_make(properties);
	return driver_virtual_end(team ? driver_virtual_add_team(team, out) : CUDA_ERROR_OUT_OF_MEMORY);
}

DRIVER_EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice ordinal)
{
	DRIVER_CALL;
	CUresult result = driver_virtual_begin();
	struct driver_device *device;
	struct driver_team *team;

	if (result)
		return result;
	team = team_of(handle);
	result = team ? driver_device_of(ordinal, &device) : CUDA_ERROR_INVALID_VALUE;
	if (!result && !driver_device_has_multicast(device))
		result = CUDA_ERROR_NOT_SUPPORTED;
	return driver_virtual_end(result ? result : driver_team_add(team, device));
}

/* The team of a call that binds to it, when all its devices are there; with a reference, for bind_end. */
static CUresult bind_begin(CUmemGenericAllocationHandle handle, size_t offset, size_t size,
			   unsigned long long flags, struct driver_team **out)
{
	CUresult result = driver_virtual_begin();
	struct driver_team *team;

	if (result)
		return result;
	team = team_of(handle);
	if (!team || flags || !size || (offset | size) % GRANULE || offset > driver_team_size(team) ||
	    size > driver_team_size(team) - offset)
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	driver_team_hold(team);
	driver_virtual_end(CUDA_SUCCESS);
	driver_team_wait(team);
	*out = team;
	return driver_virtual_begin();
}

static CUresult bind_end(struct driver_team *team, CUresult result)
{
	driver_team_drop(team);
	return driver_virtual_end(result);
}

DRIVER_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
					  CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
					  unsigned long long flags)
{
	DRIVER_CALL;
	struct driver_team *team;
	struct driver_part part;
	CUresult result = memory_offset % GRANULE ? CUDA_ERROR_INVALID_VALUE :
						    bind_begin(handle, offset, size, flags, &team);

	if (result)
		return result;
	result = driver_virtual_hold(driver_virtual_memory_of(memory), memory_offset, size, &part);
	if (!result)
		result = driver_team_bind(team, offset, size, &part);
	return bind_end(team, result);
}

/* Memory of a pool.  Without the lock: all that runs is waited for where it has no file yet. */
static bool hold_pooled(CUdeviceptr address, size_t size, struct driver_part *part)
{
	struct driver_allocation allocation;
	int fd;

	if (!driver_memory_find(address, &allocation) || allocation.kind != DRIVER_MEMORY_DEVICE ||
	    !allocation.pool || size > allocation.size - (address - allocation.base))
		return false;
	*part = (struct driver_part){ .device = allocation.device, .shareable = allocation.pool->is_shareable };
	if (allocation.pool->fd >= 0) {
		fd = allocation.pool->fd;
		part->offset = driver_arena_offset(allocation.device->arena, address);
	} else {
		fd = driver_arena_share(allocation.device->arena, address, &part->offset);
	}
	part->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return part->fd >= 0;
}

DRIVER_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address,
					   size_t size, unsigned long long flags)
{
	DRIVER_CALL;
	struct driver_team *team;
	struct driver_part part;
	struct memory *memory;
	size_t memory_offset;
	CUresult result = driver_ready();
	bool pooled;

	if (result)
		return result;
	if (address % GRANULE)
		return CUDA_ERROR_INVALID_VALUE;
	pooled = hold_pooled(address, size, &part);
	result = bind_begin(handle, offset, size, flags, &team);
	if (result && pooled)
		close(part.fd);
	if (result)
		return result;
	if (!pooled) {
		memory = driver_virtual_memory_at(address, size, &memory_offset);
		result = driver_virtual_hold(memory, memory_offset, size, &part);
	}
	if (!result)
		result = driver_team_bind(team, offset, size, &part);
	return bind_end(team, result);
}

/* What is queued may use it: it is waited for, as by cuMemUnmap. */
DRIVER_EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset,
					 size_t size)
{
	DRIVER_CALL;
	struct driver_device *device;
	struct driver_team *team;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	driver_context_drain_all();
	result = driver_virtual_begin();
	if (result)
		return result;
	team = team_of(handle);
	result = team ? driver_team_unbind(team, device, offset, size) : CUDA_ERROR_INVALID_VALUE;
	return driver_virtual_end(result);
}
