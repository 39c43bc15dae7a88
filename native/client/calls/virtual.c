/* Addresses and memory apart from each other, and pools: what their calls need beyond
 * travelling as they are, which is that every address is reserved in this process, too. */
#include "../../generated/client_raw.h"
#include "../addresses/exports.h"
#include "../addresses/place.h"
#include "../addresses/ranges.h"
#include "../exchange/exchange.h"
#include "../ground/message.h"
#include "../ground/thread.h"
#include "../handles/route.h"
#include "../handles/streams.h"
#include "descriptor.h"

#include <string.h>

struct reservation {
	size_t alignment;
	CUdeviceptr wish;
	unsigned long long flags;
};

static CUresult reservation_take(void *opaque, unsigned attempt, struct client_range *range)
{
	const struct reservation *reservation = opaque;
	CUdeviceptr address = 0;
	CUresult result = client_raw_cuMemAddressReserve(&address, range->bytes, reservation->alignment,
							 attempt ? 0 : reservation->wish,
							 reservation->flags);

	range->base = address;
	return result;
}

static void reservation_give(void *opaque, const struct client_range *range, uint64_t address)
{
	(void)opaque;
	client_raw_cuMemAddressFree(address, range->bytes);
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
			     unsigned long long flags)
{
	struct reservation reservation = { alignment, addr, flags };
	const struct client_placement placement = {
		.take = reservation_take,
		.give = reservation_give,
		.opaque = &reservation,
	};
	struct client_range range = {
		.kind = MEMORY_DEVICE,
		.bytes = size,
		.context = client_context_current(),
		.reserved = true,
	};
	CUresult result;

	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	result = client_memory_place(&placement, &range);
	if (result == CUDA_SUCCESS)
		*ptr = range.base;
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
	struct client_range range = {
		.kind = MEMORY_DEVICE,
		.base = ptr,
		.bytes = size,
		.context = client_context_current(),
		.apart = true,
	};
	struct client_session *session;
	struct client_range reserved;
	CUresult result;

	client_named_wire((const void *)(uintptr_t)handle, &session);
	if (client_memory_find_reserved(ptr, &reserved)) {
		range.session = reserved.session;
		if (reserved.session != session) {
			client_message("mapping memory of %s at addresses that were reserved at %s is "
				       "not supported over remoting: reserve them while a device of the "
				       "memory's server is current", session->peer,
				       reserved.session->peer);
			return CUDA_ERROR_NOT_SUPPORTED;
		}
	}
	result = client_raw_cuMemMap(ptr, size, offset, handle, flags);
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

static bool location_is_host(CUmemLocation location)
{
	return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

/* Memory of the host is that of the GPU's node, where this process can't read it: drivers that can have it are
 * not asked. */
static CUresult location_check(CUmemLocation location)
{
	if (!location_is_host(location))
		return CUDA_SUCCESS;
	client_message("memory of the host that the driver gives (cuMemCreate, pools) is not supported over "
		       "remoting: it would be the GPU's node's; use cuMemHostAlloc");
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		     unsigned long long flags)
{
	CUresult result = prop ? location_check(prop->location) : CUDA_SUCCESS;

	/* Without a word: PyTorch tries whether there are others, and goes on with descriptors. */
	if (result == CUDA_SUCCESS && prop &&
	    prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		result = CUDA_ERROR_NOT_SUPPORTED;
	client_descriptors_look();
	return result == CUDA_SUCCESS ? client_raw_cuMemCreate(handle, size, prop, flags) : result;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop)
{
	CUresult result = CUDA_SUCCESS;

	if (prop && prop->handleTypes & ~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		result = CUDA_ERROR_NOT_SUPPORTED;
	client_descriptors_look();
	return result == CUDA_SUCCESS ? client_raw_cuMulticastCreate(mcHandle, prop) : result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	client_descriptors_look();
	return client_raw_cuMemRelease(handle);
}

/* Whoever asks for the host's goes another way when cuMemCreate refuses, and gives up when this does (NCCL): it is told
 * the device's. */
CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
				       CUmemAllocationGranularity_flags option)
{
	CUmemAllocationProp device;

	if (prop && location_is_host(prop->location)) {
		device = *prop;
		device.location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE };
		prop = &device;
	}
	return client_raw_cuMemGetAllocationGranularity(granularity, prop, option);
}

/* What a pool of managed memory gives would be read here like any other, too. */
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	CUresult result = poolProps ? location_check(poolProps->location) : CUDA_SUCCESS;

	if (result != CUDA_SUCCESS)
		return result;
	if (poolProps && poolProps->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED) {
		client_message("pools of managed memory are not supported over remoting: use "
			       "cuMemAllocManaged");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (poolProps)
		result = client_descriptors_check((unsigned)poolProps->handleTypes);
	client_descriptors_look();
	return result == CUDA_SUCCESS ? client_raw_cuMemPoolCreate(pool, poolProps) : result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	client_descriptors_look();
	return client_raw_cuMemPoolDestroy(pool);
}

struct pool_allocation {
	CUmemoryPool pool;
	CUstream stream;
};

static CUresult pool_take(void *opaque, unsigned attempt, struct client_range *range)
{
	const struct pool_allocation *allocation = opaque;
	CUdeviceptr address = 0;
	CUresult result = client_raw_cuMemAllocFromPoolAsync(&address, range->bytes, allocation->pool,
							     allocation->stream);

	(void)attempt;
	range->base = address;
	return result;
}

static void pool_give(void *opaque, const struct client_range *range, uint64_t address)
{
	const struct pool_allocation *allocation = opaque;
	struct wire_memory_free_async request = { .address = address };

	(void)range;
	if (client_stream_wire(allocation->stream, &request.stream) == CUDA_SUCCESS)
		client_post(WIRE_OP_MEMORY_FREE_ASYNC, &request, sizeof(request), NULL, 0);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
				 CUstream hStream)
{
	struct pool_allocation allocation = { pool, hStream };
	const struct client_placement placement = {
		.take = pool_take,
		.give = pool_give,
		.opaque = &allocation,
	};
	struct client_range range = {
		.kind = MEMORY_DEVICE,
		.bytes = bytesize,
		.context = client_context_current(),
		.pool = pool,
		.apart = true,
	};
	CUresult result;

	if (!dptr)
		return CUDA_ERROR_INVALID_VALUE;
	/* The pool and the stream say where it is, not the current context. */
	if (pool)
		client_named_wire(pool, &range.session);
	result = client_memory_place(&placement, &range);
	if (result == CUDA_SUCCESS)
		*dptr = range.base;
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
