#include "../driver/memory.h"

#include "../driver/pool.h"
#include "../driver/virtual.h"

/* As what the memory can be given to another process. */
static CUmemAllocationHandleType handle_types_of(const struct driver_allocation *a)
{
	if (a->kind == DRIVER_MEMORY_VIRTUAL)
		return driver_virtual_shareable_at(a->base);
	return a->pool && a->pool->is_shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR :
						  CU_MEM_HANDLE_TYPE_NONE;
}

/* What each attribute of a pointer is; `found` is false for pageable memory,
 * whose attributes are all zero but for the device (-2, as CUDA answers). */
static CUresult pointer_attribute(void *out, CUpointer_attribute attribute, uintptr_t address,
				  const struct driver_allocation *a, bool found)
{
	bool host = found && (a->kind == DRIVER_MEMORY_PINNED || a->kind == DRIVER_MEMORY_REGISTERED ||
			      !a->device);
	bool managed = found && (a->kind == DRIVER_MEMORY_MANAGED ||
				 (a->kind == DRIVER_MEMORY_MODULE && a->flags));

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)out = found ? a->context : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)out = !found ? 0 : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)out = found ? address : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		*(void **)out = host || managed ? (void *)address : NULL;
		return host || managed || !found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*(unsigned *)out = found && a->sync;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)out = found ? a->id : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)out = managed;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)out = !found ? -2 : a->device ? a->device->ordinal : CU_DEVICE_CPU;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)out = found && a->kind == DRIVER_MEMORY_DEVICE && !a->pool;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		*(unsigned *)out = 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)out = found ? a->base : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)out = found ? a->size : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)out = found;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)out = found ? handle_types_of(a) : CU_MEM_HANDLE_TYPE_NONE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*(unsigned *)out = found ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE :
					   CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)out = found ? a->pool : NULL;
		return CUDA_SUCCESS;
	default:
		driver_unsupported("an attribute of cuPointerGetAttribute");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

DRIVER_EXPORT CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute,
					     CUdeviceptr address)
{
	DRIVER_CALL;
	struct driver_allocation allocation;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!out || !driver_memory_find(address, &allocation))
		return CUDA_ERROR_INVALID_VALUE;
	return pointer_attribute(out, attribute, address, &allocation, true);
}

DRIVER_EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *list,
					      void **out, CUdeviceptr address)
{
	DRIVER_CALL;
	struct driver_allocation allocation = { 0 };
	CUresult result = driver_ready();
	bool found;

	if (result)
		return result;
	if (!count || !list || !out)
		return CUDA_ERROR_INVALID_VALUE;
	found = driver_memory_find(address, &allocation);
	for (unsigned i = 0; i < count; i++) {
		if (!out[i])
			return CUDA_ERROR_INVALID_VALUE;
		result = pointer_attribute(out[i], list[i], address, &allocation, found);
		/* Several at once: what an allocation lacks is NULL, not an error. */
		if (result && result != CUDA_ERROR_INVALID_VALUE)
			return result;
	}
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
					     CUdeviceptr address)
{
	DRIVER_CALL;
	CUresult result = driver_ready();

	if (result)
		return result;
	/* Copies of an allocation are never asynchronous to it when that matters
	 * (RDMA): what is set here is told again, and changes nothing else. */
	if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
	    !driver_memory_set_sync(address, *(const unsigned *)value))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}
