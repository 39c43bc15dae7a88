/* Addresses of virtual memory management: reserved, mapped, and who has access. */
#include "../driver/virtual.h"

#include "../driver/arena.h"
#include "../driver/context_life.h"
#include "../driver/multicast.h"

#define GRANULE DRIVER_ARENA_GRANULE
#define ACCESS_ALL CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* ---- addresses ---- */

DRIVER_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t align,
					   CUdeviceptr wanted, unsigned long long flags)
{
	DRIVER_CALL;
	CUresult result = driver_virtual_begin();

	if (result)
		return result;
	if (align < GRANULE)
		align = GRANULE;
	if (!out || !size || size % GRANULE || align & (align - 1) || flags ||
	    size > SIZE_MAX / 2 || align > SIZE_MAX / 4)
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	return driver_virtual_end(driver_virtual_reserve(size, align, wanted, out));
}

DRIVER_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	DRIVER_CALL;
	CUresult result = driver_virtual_begin();

	if (result)
		return result;
	result = driver_virtual_unreserve(address, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	return driver_virtual_end(result);
}

/* ---- mapping ---- */

/* A multicast object is mapped when all its devices are there. */
static CUresult await_team(CUmemGenericAllocationHandle handle)
{
	CUresult result = driver_virtual_begin();
	struct driver_team *team;
	struct memory *memory;

	if (result)
		return result;
	memory = driver_virtual_memory_of(handle);
	team = memory ? memory->team : NULL;
	if (team)
		memory->mappings++;
	driver_virtual_end(CUDA_SUCCESS);
	if (!team)
		return CUDA_SUCCESS;
	driver_team_wait(team);
	driver_virtual_begin();
	memory->mappings--;
	/* Another thread may have released it meanwhile. */
	driver_virtual_drop(memory);
	return driver_virtual_end(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
				CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	DRIVER_CALL;
	struct memory *memory;
	CUresult result = await_team(handle);

	if (!result)
		result = driver_virtual_begin();
	if (result)
		return result;
	memory = driver_virtual_memory_of(handle);
	if (!memory || flags || !size || (address | size | offset) % GRANULE ||
	    offset > memory->size || size > memory->size - offset ||
	    !driver_virtual_is_reserved(address, size) || driver_virtual_mapping_within(address, size))
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	return driver_virtual_end(driver_virtual_map(address, size, offset, memory));
}

/* What is queued may use the addresses: it is waited for, as by cuMemFree. */
DRIVER_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	driver_context_drain_all();
	result = driver_virtual_begin();
	if (result)
		return result;
	if (!size || !driver_virtual_is_covered(address, size))
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	for (uintptr_t at = address; at < address + size; ) {
		struct driver_mapping *mapping = driver_virtual_mapping_within(at, 1);

		at += mapping->size;
		driver_virtual_unmap(mapping);
	}
	return driver_virtual_end(CUDA_SUCCESS);
}

/* ---- access ---- */

static unsigned char *access_of(struct driver_mapping *mapping, const CUmemLocation *location)
{
	return driver_virtual_is_host(location) ? &mapping->host_access : &mapping->access[location->id];
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
		const struct driver_mapping *mapping = driver_virtual_mapping_within(at, 1);

		if (mapping->memory->device || mapping->memory->team)
			return driver_unsupported("access of the host to memory of a device in cuMemSetAccess");
		at += mapping->size;
	}
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size,
				      const CUmemAccessDesc *list, size_t count)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!size || !list || !count)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_access(list, count);
	if (result)
		return result;
	driver_context_drain_all();
	result = driver_virtual_begin();
	if (result)
		return result;
	if (!driver_virtual_is_covered(address, size))
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	result = check_host_access(address, size, list, count);
	if (result)
		return driver_virtual_end(result);
	for (uintptr_t at = address; at < address + size; ) {
		struct driver_mapping *mapping = driver_virtual_mapping_within(at, 1);

		for (size_t i = 0; i < count; i++)
			*access_of(mapping, &list[i].location) = (unsigned char)list[i].flags;
		driver_virtual_apply_access(mapping);
		at += mapping->size;
	}
	return driver_virtual_end(CUDA_SUCCESS);
}

DRIVER_EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
				      CUdeviceptr address)
{
	DRIVER_CALL;
	struct driver_mapping *mapping;
	CUresult result = driver_virtual_begin();

	if (result)
		return result;
	mapping = driver_virtual_mapping_within(address, 1);
	if (!flags || !location || !mapping ||
	    (location->type != CU_MEM_LOCATION_TYPE_DEVICE && !driver_virtual_is_host(location)))
		return driver_virtual_end(CUDA_ERROR_INVALID_VALUE);
	if (!driver_virtual_is_host(location) && !driver_device_at(location->id))
		return driver_virtual_end(CUDA_ERROR_INVALID_DEVICE);
	*flags = *access_of(mapping, location);
	return driver_virtual_end(CUDA_SUCCESS);
}
