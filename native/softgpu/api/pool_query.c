#include "../driver/pool.h"

#include "../driver/arena.h"
#include "../driver/context_life.h"
#include "../driver/virtual_file.h"

#include <unistd.h>

/* ---- the pools of a device ---- */

DRIVER_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = device->default_pool;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = device->current_pool;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (!result)
		result = driver_pool_of(pool);
	if (result)
		return result;
	if (pool->is_imported)
		return CUDA_ERROR_INVALID_VALUE;
	if (pool->device != device)
		return CUDA_ERROR_INVALID_DEVICE;
	return driver_pool_set_current(device, pool);
}

/* A shareable pool is pages of one file, all of which its handle is. */
static CUresult make_pool(CUmemoryPool *out, const CUmemPoolProps *properties,
			  struct driver_device *device)
{
	bool is_shareable = properties->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	struct CUmemPoolHandle_st *pool;
	int fd = -1;

	if (is_shareable) {
		fd = driver_virtual_file(device->identity, driver_arena_span(device->arena));
		if (fd < 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pool = driver_pool_make(device, fd, properties->maxSize);
	if (!pool) {
		if (fd >= 0)
			close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pool->is_shareable = is_shareable;
	*out = pool;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!out || !properties || (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED &&
				    properties->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED))
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ||
	    properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return driver_unsupported("cuMemPoolCreate for memory that is not a device's alone");
	device = driver_device_at(properties->location.id);
	if (!device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
	    properties->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return driver_unsupported("cuMemPoolCreate for sharing other than by file descriptor");
	if (properties->handleTypes && driver_options()->strict)
		return driver_unsupported("cuMemPoolCreate for sharing, in strict mode");
	return make_pool(out, properties, device);
}

/* ---- by location, as CUDA 13 has it ---- */

static CUresult pool_location(const CUmemLocation *location, CUmemAllocationType type,
			      struct driver_device **device)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!location || (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED))
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_MEM_ALLOCATION_TYPE_MANAGED || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return driver_unsupported("the pool of memory that is not a device's alone");
	return driver_device_of(location->id, device);
}

DRIVER_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location,
					      CUmemAllocationType type)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = pool_location(location, type, &device);

	return result ? result : cuDeviceGetDefaultMemPool(out, device->ordinal);
}

DRIVER_EXPORT CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location,
				       CUmemAllocationType type)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = pool_location(location, type, &device);

	return result ? result : cuDeviceGetMemPool(out, device->ordinal);
}

DRIVER_EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
				       CUmemoryPool pool)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = pool_location(location, type, &device);

	return result ? result : cuDeviceSetMemPool(device->ordinal, pool);
}

/* ---- attributes ---- */

DRIVER_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
					     void *value)
{
	DRIVER_CALL;
	bool strict = driver_options()->strict;
	CUresult result = driver_pool_of(pool);

	if (result)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver_pool_lock);
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = pool->reuse[attribute -
					    CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
		break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = pool->release_threshold;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = strict ? pool->used : pool->store.reserved;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = strict ? pool->used_high : pool->store.reserved_high;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = pool->used;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = pool->used_high;
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&driver_pool_lock);
	return result;
}

DRIVER_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
					     void *value)
{
	DRIVER_CALL;
	CUresult result = driver_pool_of(pool);

	if (result)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver_pool_lock);
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] =
			*(int *)value;
		break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->release_threshold = *(cuuint64_t *)value;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		/* A high-water mark can only be put back to zero. */
		if (*(cuuint64_t *)value)
			result = CUDA_ERROR_INVALID_VALUE;
		else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
			pool->used_high = pool->used;
		else
			pool->store.reserved_high = pool->store.reserved;
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&driver_pool_lock);
	return result;
}

DRIVER_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map,
					  size_t count)
{
	DRIVER_CALL;
	CUresult result = driver_pool_of(pool);

	if (result)
		return result;
	if (!map || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    !driver_device_at(map[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
		if (map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
		    map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return CUDA_ERROR_INVALID_VALUE;
		/* The owner's access can't be taken away. */
		if (map[i].location.id == pool->device->ordinal &&
		    map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return CUDA_ERROR_INVALID_DEVICE;
	}
	/* Taking access away must wait for the kernels that still have it. */
	driver_context_drain_all();
	for (size_t i = 0; i < count; i++)
		__atomic_store_n(&pool->access[map[i].location.id], (unsigned char)map[i].flags,
				 __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool,
					  CUmemLocation *location)
{
	DRIVER_CALL;
	CUresult result = driver_pool_of(pool);

	if (result)
		return result;
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !driver_device_at(location->id))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = (CUmemAccess_flags)__atomic_load_n(&pool->access[location->id], __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}
