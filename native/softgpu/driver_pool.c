#include "driver_pool.h"

#include "driver_arena.h"
#include "driver_capture.h"
#include "driver_graph_memory.h"
#include "driver_handle.h"
#include "engine.h"

#include <stdlib.h>
#include <unistd.h>

pthread_mutex_t driver_pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUmemPoolHandle_st *all_pools;	/* under the lock */
static unsigned unused_blocks;	/* atomic: given back since the last settling */

/* ---- life ---- */

struct CUmemPoolHandle_st *driver_pool_make(struct driver_device *device, int fd, size_t max)
{
	struct CUmemPoolHandle_st *pool = calloc(1, sizeof *pool);

	if (!pool)
		return NULL;
	pool->device = device;
	pool->references = 1;
	pool->fd = fd;
	for (unsigned i = 0; i < 3; i++)
		pool->reuse[i] = 1;
	pool->access[device->ordinal] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	pool->store = (struct driver_store){ .device = device, .fd = fd, .max = max };
	if (driver_handle_add(pool, DRIVER_KIND_POOL)) {
		free(pool);
		return NULL;
	}
	pthread_mutex_lock(&driver_pool_lock);
	pool->next = all_pools;
	all_pools = pool;
	pthread_mutex_unlock(&driver_pool_lock);
	return pool;
}

/* With the lock. */
static void pool_drop(struct CUmemPoolHandle_st *pool)
{
	struct CUmemPoolHandle_st **link = &all_pools;

	if (--pool->references)
		return;
	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	driver_store_close(&pool->store);
	if (pool->fd >= 0)
		close(pool->fd);
	free(pool);
}

CUresult driver_pool_open(struct driver_device *device)
{
	device->default_pool = driver_pool_make(device, -1, 0);
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
	pthread_mutex_lock(&driver_pool_lock);
	pool_drop(device->default_pool);
	pthread_mutex_unlock(&driver_pool_lock);
	device->default_pool = device->current_pool = NULL;
}

CUresult driver_pool_of(CUmemoryPool pool)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	return driver_handle_is(pool, DRIVER_KIND_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool driver_pool_may_access(struct CUmemPoolHandle_st *pool, CUdevice ordinal)
{
	return __atomic_load_n(&pool->access[ordinal], __ATOMIC_RELAXED) != 0;
}

/* ---- accounts ---- */

/* With the lock. */
static void count(struct CUmemPoolHandle_st *pool, size_t bytes)
{
	pool->references++;
	pool->used += bytes;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
}

void driver_pool_count(struct CUmemPoolHandle_st *pool, size_t bytes)
{
	pthread_mutex_lock(&driver_pool_lock);
	count(pool, bytes);
	pthread_mutex_unlock(&driver_pool_lock);
}

/* The point, if any, is taken over. */
static void give(struct CUmemPoolHandle_st *pool, size_t bytes, struct driver_block *block,
		 const struct driver_point *point)
{
	pthread_mutex_lock(&driver_pool_lock);
	pool->used -= bytes;
	if (block) {
		driver_store_give(&pool->store, block, point);
		__atomic_fetch_add(&unused_blocks, 1, __ATOMIC_RELAXED);
	}
	pool_drop(pool);
	pthread_mutex_unlock(&driver_pool_lock);
}

void driver_pool_give(const struct driver_allocation *allocation)
{
	give(allocation->pool, allocation->size, allocation->block, NULL);
}

void driver_pool_settle(void)
{
	struct CUmemPoolHandle_st *pool;

	if (!__atomic_load_n(&unused_blocks, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&driver_pool_lock);
	__atomic_store_n(&unused_blocks, 0, __ATOMIC_RELAXED);
	for (pool = all_pools; pool; pool = pool->next) {
		struct driver_point point;

		driver_store_settle(&pool->store);
		driver_store_trim(&pool->store, pool->release_threshold);
		/* What still waits is for the next time. */
		if (driver_store_pending(&pool->store, &point)) {
			__atomic_fetch_add(&unused_blocks, 1, __ATOMIC_RELAXED);
			driver_point_drop(&point);
		}
	}
	pthread_mutex_unlock(&driver_pool_lock);
}

void driver_pool_trim(struct driver_device *device)
{
	pthread_mutex_lock(&driver_pool_lock);
	for (struct CUmemPoolHandle_st *pool = all_pools; pool; pool = pool->next) {
		if (pool->device == device)
			driver_store_trim(&pool->store, 0);
	}
	pthread_mutex_unlock(&driver_pool_lock);
}

bool driver_pool_relieve(struct driver_device *device)
{
	struct CUmemPoolHandle_st *pool;
	struct driver_point point = { NULL, 0 };
	bool any = false;

	pthread_mutex_lock(&driver_pool_lock);
	for (pool = all_pools; pool; pool = pool->next) {
		if (pool->device == device)
			any = driver_store_trim(&pool->store, 0) || any;
	}
	for (pool = all_pools; pool && !any && !point.stream; pool = pool->next) {
		if (pool->device == device)
			driver_store_pending(&pool->store, &point);
	}
	pthread_mutex_unlock(&driver_pool_lock);
	if (!point.stream)
		return any;
	driver_point_wait(&point);
	driver_point_drop(&point);
	return true;
}

/* ---- stream-ordered allocation ---- */

static CUresult nothing(struct driver_operation *operation, CUresult state)
{
	(void)operation, (void)state;
	return CUDA_SUCCESS;
}

static void release_plain(struct driver_operation *operation)
{
	free(operation);
}

/* Let the stream's later work wait for the point, which is dropped. */
static CUresult follow(struct CUstream_st *stream, struct driver_point *point)
{
	struct driver_operation *wait = calloc(1, sizeof *wait);
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (!wait)
		goto out_drop;
	wait->run = nothing;
	wait->release = release_plain;
	if (driver_operation_after(wait, point)) {
		free(wait);
		goto out_drop;
	}
	result = driver_stream_submit(stream, wait, DRIVER_SUBMIT_SHORT, NULL);
out_drop:
	driver_point_drop(point);
	return result;
}

static CUresult take_block(struct CUmemPoolHandle_st *pool, size_t bytes,
			   struct CUstream_st *stream, unsigned allowed,
			   struct driver_block **block)
{
	struct driver_point after;
	unsigned reuse;
	int error;

	pthread_mutex_lock(&driver_pool_lock);
	reuse = (pool->reuse[1] ? DRIVER_REUSE_COMPLETE : 0) |
		(pool->reuse[2] ? DRIVER_REUSE_PENDING : 0);
	error = driver_store_take(&pool->store, bytes, stream, reuse & allowed, block, &after);
	if (!error)
		count(pool, bytes);
	pthread_mutex_unlock(&driver_pool_lock);
	if (error)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (after.stream && follow(stream, &after)) {
		/* It may be in use until then. */
		driver_stream_drain(stream->context);
		give(pool, bytes, *block, NULL);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

/* Memory that nobody used is better than a wait in the stream, and that than one here. */
static CUresult take_from_pool(struct CUmemPoolHandle_st *pool, size_t bytes,
			       struct CUstream_st *stream, uintptr_t *address)
{
	struct driver_allocation allocation = {
		.size = bytes, .kind = DRIVER_MEMORY_DEVICE, .context = stream->context,
		.device = pool->device, .pool = pool,
	};
	CUresult result;

	result = take_block(pool, bytes, stream, DRIVER_REUSE_COMPLETE, &allocation.block);
	if (result) {
		driver_pool_trim(pool->device);
		result = take_block(pool, bytes, stream,
				    DRIVER_REUSE_COMPLETE | DRIVER_REUSE_PENDING, &allocation.block);
	}
	while (result && driver_pool_relieve(pool->device))
		result = take_block(pool, bytes, stream, DRIVER_REUSE_COMPLETE, &allocation.block);
	if (result)
		return result;
	allocation.base = driver_block_address(allocation.block);
	result = driver_memory_remember(&allocation);
	if (result)
		driver_pool_give(&allocation);
	else
		*address = allocation.base;
	return result;
}

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
	else if (!driver_handle_is(pool, DRIVER_KIND_POOL) || pool->is_imported)
		return CUDA_ERROR_INVALID_VALUE;
	if (capturing)
		return driver_capture_alloc(stream, bytes, out);
	if (driver_options()->strict)
		result = driver_memory_take(stream->context, bytes, DRIVER_ARENA_ALIGN,
					    DRIVER_MEMORY_DEVICE, pool, &address);
	else
		result = take_from_pool(pool, bytes, stream, &address);
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

/* The memory goes when the operation does, also if it was never run. */
static void release_free(struct driver_operation *operation)
{
	driver_memory_end_free(((struct free_operation *)operation)->address);
	free(operation);
}

/* A block of a pool is the stream's to use again from here on, everybody's when the
 * stream has come this far. */
static CUresult free_block(const struct driver_allocation *allocation, struct CUstream_st *stream)
{
	struct driver_operation *marker = calloc(1, sizeof *marker);
	struct driver_point point;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (marker) {
		marker->run = nothing;
		marker->release = release_plain;
		result = driver_stream_submit(stream, marker, DRIVER_SUBMIT_SHORT, &point);
	}
	if (result)
		driver_stream_drain(stream->context);	/* in no order, but right */
	give(allocation->pool, allocation->size, allocation->block, result ? NULL : &point);
	return CUDA_SUCCESS;
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
	if (driver_memory_forget_block(address, &allocation))
		return free_block(&allocation, stream);
	operation = calloc(1, sizeof *operation);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!driver_memory_begin_free(address, &allocation)) {
		free(operation);
		return CUDA_ERROR_INVALID_VALUE;
	}
	operation->base.run = nothing;
	operation->base.release = release_free;
	operation->address = address;
	return driver_stream_submit(stream, &operation->base, DRIVER_SUBMIT_SHORT, NULL);
}

/* ---- making and ending ---- */

/* Allocations of a destroyed pool live on until they are freed. */
DRIVER_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult result = driver_pool_of(pool);

	if (result)
		return result;
	if (pool->is_default || !driver_handle_remove(pool, DRIVER_KIND_POOL))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver_pool_lock);
	if (pool->device->current_pool == pool)
		pool->device->current_pool = pool->device->default_pool;
	pool_drop(pool);
	pthread_mutex_unlock(&driver_pool_lock);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult result = driver_pool_of(pool);

	if (result)
		return result;
	pthread_mutex_lock(&driver_pool_lock);
	driver_store_trim(&pool->store, keep);
	pthread_mutex_unlock(&driver_pool_lock);
	return CUDA_SUCCESS;
}
