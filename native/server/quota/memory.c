/* memory.c - memory by its address, of streams' pools too, and what programs are told of it (quota.h). */
#include "quota.h"
#include "graphs.h"
#include "memory.h"

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

/* What is charged for that address: a stream's pool may have given it, whichever way it is freed. */
static enum charge_kind kind_at(CUdeviceptr address)
{
	enum charge_kind kind;

	pthread_mutex_lock(&quota.lock);
	kind = *quota_find(POOLED, address) ? POOLED : MEMORY;
	pthread_mutex_unlock(&quota.lock);
	return kind;
}

static CUresult mem_free(CUdeviceptr address)
{
	QUOTA_GIVE_BACK(kind_at(address), address, quota.real.cuMemFree_v2(address));
}

/* Memory that a stream's pool is asked for: where the stream is captured it is a node's, else it is charged. */
struct pooling {
	CUgraph graph;
	struct charge *charge;
};

/* false: it is not there. */
static bool pooling_begin(struct pooling *pooling, size_t bytes, CUstream stream)
{
	pooling->graph = quota_captured(stream);
	pooling->charge = pooling->graph ? NULL : quota_charge_begin(POOLED, bytes);
	return pooling->graph ? quota_node_fits(bytes) : pooling->charge != NULL;
}

static CUresult pooling_end(const struct pooling *pooling, CUresult result, CUdeviceptr address, size_t bytes)
{
	if (pooling->charge)
		return quota_charge_end(pooling->charge, result, address);
	if (result == CUDA_SUCCESS)
		quota_node_note(pooling->graph, address, bytes);
	return result;
}

static CUresult mem_alloc_async(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	struct pooling pooling;
	CUresult result;

	if (!bytes)
		return quota.real.cuMemAllocAsync(address, bytes, stream);
	if (!pooling_begin(&pooling, bytes, stream))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAllocAsync(address, bytes, stream);
	return pooling_end(&pooling, result, *address, bytes);
}

static CUresult mem_alloc_from_pool(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
				    CUstream stream)
{
	struct pooling pooling;
	CUresult result;

	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	if (!bytes)
		return quota.real.cuMemAllocFromPoolAsync(address, bytes, pool, stream);
	if (!pooling_begin(&pooling, bytes, stream))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMemAllocFromPoolAsync(address, bytes, pool, stream);
	return pooling_end(&pooling, result, *address, bytes);
}

static CUresult mem_free_async(CUdeviceptr address, CUstream stream)
{
	CUgraph graph = quota_captured(stream);
	CUresult result;

	if (!graph)
		QUOTA_GIVE_BACK(kind_at(address), address, quota.real.cuMemFreeAsync(address, stream));
	result = quota.real.cuMemFreeAsync(address, stream);
	if (result == CUDA_SUCCESS)
		quota_node_freed(graph, address);
	return result;
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
