#include "../driver/memory.h"

#include "../driver/arena.h"
#include "../driver/capture.h"
#include "../driver/context_life.h"
#include "../driver/context_stack.h"
#include "../driver/graph/memory.h"
#include "../driver/pool.h"

DRIVER_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);
	uintptr_t address;

	if (!result)
		result = driver_capture_unsafe();
	if (result)
		return result;
	if (!out || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_memory_take(context, bytes, DRIVER_ARENA_ALIGN, DRIVER_MEMORY_DEVICE,
				    NULL, &address);
	if (!result)
		*out = address;
	return result;
}

DRIVER_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);
	uintptr_t address;

	if (!result)
		result = driver_capture_unsafe();
	if (result)
		return result;
	if (!out || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_memory_take(context, bytes, DRIVER_ARENA_ALIGN, DRIVER_MEMORY_MANAGED,
				    NULL, &address);
	if (!result)
		*out = address;
	return result;
}

DRIVER_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width,
					  size_t height, unsigned int element)
{
	DRIVER_CALL;
	size_t row;
	CUresult result;

	if (!out || !pitch || !width || !height ||
	    (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (width > SIZE_MAX - DRIVER_TEXTURE_PITCH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	row = (width + DRIVER_TEXTURE_PITCH - 1) / DRIVER_TEXTURE_PITCH * DRIVER_TEXTURE_PITCH;
	if (height > SIZE_MAX / row)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cuMemAlloc_v2(out, row * height);
	if (!result)
		*pitch = row;
	return result;
}

/* Freeing waits for the work that may still use the memory, as CUDA does. */
DRIVER_EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
	DRIVER_CALL;
	struct driver_allocation allocation;
	struct CUctx_st *context;
	CUresult result = driver_ready();

	if (!result)
		result = driver_capture_unsafe();
	if (result)
		return result;
	/* Nothing to free, but the current context's error is told. */
	if (!address)
		return driver_context_top() ? driver_context_enter(&context) : CUDA_SUCCESS;
	if (driver_graph_memory_owns(address))
		return driver_graph_memory_free(address);
	if (!driver_memory_begin_free(address, &allocation))
		return CUDA_ERROR_INVALID_VALUE;
	if (allocation.context)
		driver_stream_drain(allocation.context);
	else
		driver_context_drain_all();
	driver_memory_end_free(address);
	driver_pool_settle();
	return allocation.context ? driver_context_state(allocation.context) : CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	DRIVER_CALL;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);
	uint64_t size, used;

	if (result)
		return result;
	size = context->device->model->memory_bytes;
	used = board_memory_used(context->device->board);
	if (available)
		*available = used < size ? size - used : 0;
	if (total)
		*total = size;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size,
					       CUdeviceptr address)
{
	DRIVER_CALL;
	struct driver_allocation allocation;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!driver_memory_find(address, &allocation))
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = allocation.base;
	if (size)
		*size = allocation.size;
	return CUDA_SUCCESS;
}
