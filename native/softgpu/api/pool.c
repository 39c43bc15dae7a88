#include "../driver/pool.h"

#include "../driver/arena.h"
#include "../driver/capture.h"
#include "../driver/graph/memory.h"
#include "../driver/handle.h"
#include "../driver/memory.h"
#include "../driver/stream.h"
#include "../engine/engine.h"

#include <stdlib.h>

/* ---- stream-ordered allocation ---- */

static CUresult take_block(struct CUmemPoolHandle_st *pool, size_t bytes,
			   struct CUstream_st *stream, unsigned allowed,
			   struct driver_block **block)
{
	struct driver_point after;
	CUresult result;

	if (driver_pool_take(pool, bytes, stream, allowed, block, &after))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!after.stream)
		return CUDA_SUCCESS;
	result = driver_stream_follow(stream, &after);
	if (result) {
		/* It may be in use until then. */
		driver_point_wait(&after);
		driver_pool_give(pool, bytes, *block, NULL);
	}
	driver_point_drop(&after);
	return result;
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
		driver_pool_give(pool, bytes, allocation.block, NULL);
	else
		*address = allocation.base;
	return result;
}

/* `wanted`: NULL is the device's current pool. */
static CUresult alloc_async(CUdeviceptr *out, size_t bytes, CUmemoryPool wanted, CUstream handle)
{
	struct CUmemPoolHandle_st *pool;
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);
	CUdeviceptr captured = 0;
	uintptr_t address = 0;

	if (result)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	pool = driver_pool_hold(stream->context->device, wanted);
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (pool->is_imported)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!bytes)
		address = 0;	/* no memory, and unlike cuMemAlloc no error; captured it is no node */
	else if (capturing)
		result = driver_capture_alloc(stream, bytes, &captured);
	else if (driver_options()->strict)
		result = driver_memory_take(stream->context, bytes, DRIVER_ARENA_ALIGN,
					    DRIVER_MEMORY_DEVICE, pool, &address);
	else
		result = take_from_pool(pool, bytes, stream, &address);
	driver_pool_drop(pool);
	if (!result)
		*out = captured ? captured : address;
	return result;
}

DRIVER_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	DRIVER_CALL;
	return alloc_async(out, bytes, NULL, stream);
}

DRIVER_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
					       CUstream stream)
{
	DRIVER_CALL;
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

/* A block of a pool is the stream's to use again from here on, everybody's when the
 * stream has come this far. */
static CUresult free_block(const struct driver_allocation *allocation, struct CUstream_st *stream)
{
	struct driver_operation *marker = driver_operation_make_empty();
	struct driver_point point;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (marker)
		result = driver_stream_submit(stream, marker, DRIVER_SUBMIT_SHORT, &point);
	if (result)
		driver_stream_drain(stream->context);	/* in no order, but right */
	driver_pool_give(allocation->pool, allocation->size, allocation->block,
			 result ? NULL : &point);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
	DRIVER_CALL;
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
	operation->base.run = run_free;
	operation->base.release = release_free;
	operation->address = address;
	return driver_stream_submit(stream, &operation->base, DRIVER_SUBMIT_SHORT, NULL);
}

/* ---- making and ending ---- */

/* Allocations of a destroyed pool live on until they are freed. */
DRIVER_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	DRIVER_CALL;
	CUresult result = driver_pool_of(pool);

	if (result)
		return result;
	if (pool->is_default || !driver_handle_remove(pool, DRIVER_KIND_POOL))
		return CUDA_ERROR_INVALID_VALUE;
	driver_pool_destroy(pool);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	DRIVER_CALL;
	CUresult result = driver_pool_of(pool);

	if (result)
		return result;
	pthread_mutex_lock(&driver_pool_lock);
	driver_store_trim(&pool->store, keep);
	pthread_mutex_unlock(&driver_pool_lock);
	return CUDA_SUCCESS;
}
