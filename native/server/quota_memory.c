/* quota_memory.c - memory by its address, of streams' pools too, and what programs are told of it (quota.h). */
#include "quota.h"

static CUresult mem_alloc(CUdeviceptr *address, size_t bytes)
{
	CUresult result;
	struct charge *charge = quota_charge_begin(MEMORY, bytes);

	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAlloc_v2(address, bytes);
	return quota_charge_end(charge, result, *address);
}

static CUresult mem_alloc_managed(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
	CUresult result;
	struct charge *charge;

	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	charge = quota_charge_begin(MEMORY, bytes);
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAllocManaged(address, bytes, flags);
	return quota_charge_end(charge, result, *address);
}

static CUresult mem_alloc_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
				unsigned int element)
{
	struct charge *charge;
	size_t bytes, padded;
	CUresult result;

	/* No driver pads a row by more than this. */
	if (__builtin_mul_overflow((width + 4095) & ~(size_t)511, height, &padded))
		return CUDA_ERROR_OUT_OF_MEMORY;
	charge = quota_charge_begin(MEMORY, padded);
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAllocPitch_v2(address, pitch, width, height, element);
	bytes = result == CUDA_SUCCESS ? *pitch * height : padded;
	if (bytes < padded) {
		quota_give(padded - bytes);
		charge->bytes = bytes;
	}
	return quota_charge_end(charge, result, *address);
}

static CUresult mem_free(CUdeviceptr address)
{
	pthread_mutex_lock(&quota.lock);
	bool pooled = *quota_find(POOLED, address) != NULL;
	pthread_mutex_unlock(&quota.lock);
	QUOTA_GIVE_BACK(pooled ? POOLED : MEMORY, address, quota.real.cuMemFree_v2(address));
}

static CUresult mem_alloc_async(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	CUgraph graph = quota_captured(stream);
	struct charge *charge;
	CUresult result;

	if (graph && !quota_node_fits(bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	charge = graph ? NULL : quota_charge_begin(POOLED, bytes);
	if (!graph && !charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAllocAsync(address, bytes, stream);
	if (!graph)
		return quota_charge_end(charge, result, *address);
	if (result == CUDA_SUCCESS)
		quota_node_note(graph, *address, bytes);
	return result;
}

static CUresult mem_alloc_from_pool(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
				    CUstream stream)
{
	CUgraph graph = quota_captured(stream);
	struct charge *charge;
	CUresult result;

	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	if (graph && !quota_node_fits(bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	charge = graph ? NULL : quota_charge_begin(POOLED, bytes);
	if (!graph && !charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAllocFromPoolAsync(address, bytes, pool, stream);
	if (!graph)
		return quota_charge_end(charge, result, *address);
	if (result == CUDA_SUCCESS)
		quota_node_note(graph, *address, bytes);
	return result;
}

static CUresult mem_free_async(CUdeviceptr address, CUstream stream)
{
	CUgraph graph = quota_captured(stream);

	if (graph) {
		CUresult result = quota.real.cuMemFreeAsync(address, stream);

		if (result == CUDA_SUCCESS)
			quota_node_freed(graph, address);
		return result;
	}
	pthread_mutex_lock(&quota.lock);
	bool pooled = *quota_find(POOLED, address) != NULL;
	pthread_mutex_unlock(&quota.lock);
	QUOTA_GIVE_BACK(pooled ? POOLED : MEMORY, address, quota.real.cuMemFreeAsync(address, stream));
}

static CUresult mem_get_info(size_t *free_bytes, size_t *total)
{
	CUresult result = quota.real.cuMemGetInfo_v2(free_bytes, total);
	uint64_t now = quota_used(), left = now < quota.limit ? quota.limit - now : 0;

	if (result == CUDA_SUCCESS && *free_bytes > left)
		*free_bytes = left;
	if (result == CUDA_SUCCESS && *total > quota.limit)
		*total = quota.limit;
	return result;
}

static CUresult device_total(size_t *bytes, CUdevice device)
{
	CUresult result = quota.real.cuDeviceTotalMem_v2(bytes, device);

	if (result == CUDA_SUCCESS && *bytes > quota.limit)
		*bytes = quota.limit;
	return result;
}

void quota_memory_install(struct server_driver *driver)
{
	QUOTA_INSTEAD(cuMemAlloc_v2, mem_alloc);
	QUOTA_INSTEAD(cuMemAllocManaged, mem_alloc_managed);
	QUOTA_INSTEAD(cuMemAllocPitch_v2, mem_alloc_pitch);
	QUOTA_INSTEAD(cuMemFree_v2, mem_free);
	QUOTA_INSTEAD(cuMemAllocAsync, mem_alloc_async);
	QUOTA_INSTEAD(cuMemAllocFromPoolAsync, mem_alloc_from_pool);
	QUOTA_INSTEAD(cuMemFreeAsync, mem_free_async);
	QUOTA_INSTEAD(cuMemGetInfo_v2, mem_get_info);
	QUOTA_INSTEAD(cuDeviceTotalMem_v2, device_total);
}
