#include "driver_arena.h"
#include "driver_capture.h"
#include "driver_graph_memory.h"
#include "driver_handle.h"
#include "driver_memory.h"
#include "driver_stream.h"

#include <pthread.h>
#include <stdlib.h>

/* A pool is an account: its memory comes from, and goes back to, the device's
 * arena at once, so nothing is ever reserved beyond what is used. */
struct CUmemPoolHandle_st {
	struct driver_device *device;
	bool is_default;
	unsigned references;		/* the handle and its allocations; atomic */
	uint64_t release_threshold;
	int reuse[3];			/* FOLLOW_EVENT, OPPORTUNISTIC, INTERNAL */
	size_t used, used_high;
};

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

static struct CUmemPoolHandle_st *pool_make(struct driver_device *device)
{
	struct CUmemPoolHandle_st *pool = calloc(1, sizeof *pool);

	if (!pool)
		return NULL;
	pool->device = device;
	pool->references = 1;
	for (unsigned i = 0; i < 3; i++)
		pool->reuse[i] = 1;
	if (driver_handle_add(pool, DRIVER_KIND_POOL)) {
		free(pool);
		return NULL;
	}
	return pool;
}

/* With the lock. */
static void pool_drop(struct CUmemPoolHandle_st *pool)
{
	if (!--pool->references)
		free(pool);
}

CUresult driver_pool_open(struct driver_device *device)
{
	device->default_pool = pool_make(device);
	if (!device->default_pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	device->default_pool->is_default = true;
	device->current_pool = device->default_pool;
	return CUDA_SUCCESS;
}

void driver_pool_close(struct driver_device *device)
{
	if (!device->default_pool)
		return;
	driver_handle_remove(device->default_pool, DRIVER_KIND_POOL);
	pthread_mutex_lock(&pool_lock);
	pool_drop(device->default_pool);
	pthread_mutex_unlock(&pool_lock);
	device->default_pool = device->current_pool = NULL;
}

void driver_pool_count(struct CUmemPoolHandle_st *pool, size_t bytes, bool take)
{
	pthread_mutex_lock(&pool_lock);
	if (take) {
		pool->references++;
		pool->used += bytes;
		if (pool->used > pool->used_high)
			pool->used_high = pool->used;
	} else {
		pool->used -= bytes;
		pool_drop(pool);
	}
	pthread_mutex_unlock(&pool_lock);
}

/* ---- stream-ordered allocation ---- */

static CUresult alloc_async(CUdeviceptr *out, size_t bytes, struct CUmemPoolHandle_st *pool,
			    CUstream handle)
{
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);
	uintptr_t address;

	if (result)
		return result;
	if (!out || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!pool)
		pool = stream->context->device->current_pool;
	else if (!driver_handle_is(pool, DRIVER_KIND_POOL))
		return CUDA_ERROR_INVALID_VALUE;
	if (capturing)
		return driver_capture_alloc(stream, bytes, out);
	result = driver_memory_take(stream->context, bytes, DRIVER_ARENA_ALIGN,
				    DRIVER_MEMORY_DEVICE, pool, &address);
	if (!result)
		*out = address;
	return result;
}

DRIVER_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	return alloc_async(out, bytes, NULL, stream);
}

DRIVER_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
					       CUstream stream)
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	return alloc_async(out, bytes, pool, stream);
}

struct free_operation {
	struct driver_operation base;
	uintptr_t address;
};

static CUresult run_free(struct driver_operation *operation, CUresult state)
{
	(void)operation, (void)state;
	return CUDA_SUCCESS;
}

/* The memory goes when the operation does, also if it was never run. */
static void release_free(struct driver_operation *operation)
{
	driver_memory_end_free(((struct free_operation *)operation)->address);
	free(operation);
}

DRIVER_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
	struct driver_allocation allocation;
	struct free_operation *operation;
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (result)
		return result;
	if (!address)
		return CUDA_SUCCESS;
	if (capturing)
		return driver_capture_free(stream, address);
	if (driver_graph_memory_owns(address))
		return driver_graph_memory_free_in(stream, address);
	operation = calloc(1, sizeof *operation);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!driver_memory_begin_free(address, &allocation)) {
		free(operation);
		return CUDA_ERROR_INVALID_VALUE;
	}
	operation->base.run = run_free;
	operation->base.release = release_free;
	operation->address = address;
	return driver_stream_submit(stream, &operation->base, DRIVER_SUBMIT_SHORT, NULL);
}

/* ---- pools ---- */

static CUresult check_pool(CUmemoryPool pool)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	return driver_handle_is(pool, DRIVER_KIND_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal)
{
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
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	if (!result)
		result = check_pool(pool);
	if (result)
		return result;
	if (pool->device != device)
		return CUDA_ERROR_INVALID_DEVICE;
	device->current_pool = pool;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
	struct driver_device *device;
	struct CUmemPoolHandle_st *pool;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!out || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
	    properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return driver_unsupported("cuMemPoolCreate for sharing or in host memory");
	device = driver_device_at(properties->location.id);
	if (!device)
		return CUDA_ERROR_INVALID_DEVICE;
	pool = pool_make(device);
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = pool;
	return CUDA_SUCCESS;
}

/* Allocations of a destroyed pool live on until they are freed. */
DRIVER_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult result = check_pool(pool);

	if (result)
		return result;
	if (pool->is_default || !driver_handle_remove(pool, DRIVER_KIND_POOL))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&pool_lock);
	if (pool->device->current_pool == pool)
		pool->device->current_pool = pool->device->default_pool;
	pool_drop(pool);
	pthread_mutex_unlock(&pool_lock);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	(void)keep;	/* nothing is kept beyond what is used */
	return check_pool(pool);
}

DRIVER_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
					     void *value)
{
	CUresult result = check_pool(pool);

	if (result)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&pool_lock);
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
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = pool->used;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = pool->used_high;
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&pool_lock);
	return result;
}

DRIVER_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
					     void *value)
{
	CUresult result = check_pool(pool);

	if (result)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&pool_lock);
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
		else
			pool->used_high = pool->used;
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&pool_lock);
	return result;
}

DRIVER_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map,
					  size_t count)
{
	CUresult result = check_pool(pool);

	if (result)
		return result;
	if (!map || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    !driver_device_at(map[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
		/* The owner's access can't be taken away. */
		if (map[i].location.id == pool->device->ordinal &&
		    map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return CUDA_ERROR_INVALID_DEVICE;
	}
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool,
					  CUmemLocation *location)
{
	CUresult result = check_pool(pool);

	if (result)
		return result;
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !driver_device_at(location->id))
		return CUDA_ERROR_INVALID_DEVICE;
	/* Every device of the process reaches all memory of the process. */
	*flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return CUDA_SUCCESS;
}
