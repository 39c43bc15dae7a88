/* Addresses and memory apart from each other, and pools: what their calls need beyond
 * travelling as they are, which is that every address is reserved in this process, too. */
#include "client.h"

#include <errno.h>
#include <string.h>

#include "marshal.h"

/* Attempts to find addresses that are free on both sides. */
#define PLACEMENT_ATTEMPTS 12u

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
			     unsigned long long flags)
{
	CUdeviceptr kept[PLACEMENT_ATTEMPTS];
	CUdeviceptr address = 0;
	unsigned kept_count = 0;
	CUresult result;
	int rc = -EEXIST;

	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	do {
		struct client_range range = {
			.kind = MEMORY_DEVICE,
			.bytes = size,
			.context = client_context_current(),
			.reserved = true,
		};

		result = client_raw_cuMemAddressReserve(&address, size, alignment,
							kept_count ? 0 : addr, flags);
		range.base = address;
		if (result != CUDA_SUCCESS)
			break;
		rc = client_memory_add(&range);
		if (!rc)
			*ptr = range.base;
		else
			kept[kept_count++] = range.base;
	} while (rc == -EEXIST && kept_count < PLACEMENT_ATTEMPTS);
	while (kept_count)
		client_raw_cuMemAddressFree(kept[--kept_count], size);
	if (result == CUDA_SUCCESS && rc) {
		client_message("no addresses for %zu bytes are free both here and on the GPU", size);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	struct client_range range;
	CUresult result = client_raw_cuMemAddressFree(ptr, size);

	if (result == CUDA_SUCCESS)
		client_memory_remove(ptr, MEMORY_DEVICE, &range);
	return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	const struct client_range range = {
		.kind = MEMORY_DEVICE,
		.base = ptr,
		.bytes = size,
		.context = client_context_current(),
	};
	CUresult result = client_raw_cuMemMap(ptr, size, offset, handle, flags);

	if (result == CUDA_SUCCESS && client_memory_map(&range)) {
		client_raw_cuMemUnmap(ptr, size);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult result = client_raw_cuMemUnmap(ptr, size);

	if (result == CUDA_SUCCESS)
		client_memory_unmap(ptr, size);
	return result;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUresult result = client_raw_cuMemSetAccess(ptr, size, desc, count);
	bool accessible = false;

	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
		accessible = accessible || desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
			     desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ;
	if (result == CUDA_SUCCESS)
		client_memory_access(ptr, size, accessible);
	return result;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
				 CUstream hStream)
{
	CUdeviceptr kept[PLACEMENT_ATTEMPTS];
	CUdeviceptr address = 0;
	unsigned kept_count = 0;
	CUresult result;
	int rc = -EEXIST;

	if (!dptr)
		return CUDA_ERROR_INVALID_VALUE;
	do {
		struct client_range range = {
			.kind = MEMORY_DEVICE,
			.bytes = bytesize,
			.context = client_context_current(),
			.pool = pool,
		};

		result = client_raw_cuMemAllocFromPoolAsync(&address, bytesize, pool, hStream);
		range.base = address;
		if (result != CUDA_SUCCESS)
			break;
		rc = client_memory_add(&range);
		if (!rc)
			*dptr = range.base;
		else
			kept[kept_count++] = range.base;
	} while (rc == -EEXIST && kept_count < PLACEMENT_ATTEMPTS);
	while (kept_count) {
		struct wire_memory_free_async request = { .address = kept[--kept_count] };

		if (client_stream_wire(hStream, &request.stream) == CUDA_SUCCESS)
			client_post(WIRE_OP_MEMORY_FREE_ASYNC, &request, sizeof(request), NULL, 0);
	}
	if (result == CUDA_SUCCESS && rc) {
		client_message("no addresses for %zu bytes are free both here and on the GPU",
			       bytesize);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}

/* ---- attributes of pools: the first are an int, the others 64 bits ---- */

static size_t attribute_bytes(CUmemPool_attribute attr)
{
	return attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? sizeof(int)
									 : sizeof(cuuint64_t);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	cuuint64_t wide = 0;
	CUresult result = client_raw_cuMemPoolGetAttribute(pool, attr, value ? &wide : NULL);

	if (result == CUDA_SUCCESS)
		memcpy(value, &wide, attribute_bytes(attr));
	return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	cuuint64_t wide = 0;

	if (value)
		memcpy(&wide, value, attribute_bytes(attr));
	return client_raw_cuMemPoolSetAttribute(pool, attr, value ? &wide : NULL);
}
