#define _GNU_SOURCE
#include "../driver/capture.h"
#include "../driver/context_life.h"
#include "../driver/context_stack.h"
#include "../driver/memory.h"

#include <sys/mman.h>

static CUresult host_alloc(void **out, size_t bytes, unsigned flags)
{
	struct driver_allocation allocation = {
		.size = bytes, .kind = DRIVER_MEMORY_PINNED, .flags = flags,
	};
	CUresult result = driver_context_enter(&allocation.context);
	void *memory;

	if (!result)
		result = driver_capture_unsafe();
	if (result)
		return result;
	if (!out || !bytes || flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE |
						  CU_MEMHOSTALLOC_DEVICEMAP |
						  CU_MEMHOSTALLOC_WRITECOMBINED))
		return CUDA_ERROR_INVALID_VALUE;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation.base = (uintptr_t)memory;
	allocation.device = allocation.context->device;
	result = driver_memory_remember(&allocation);
	if (result) {
		munmap(memory, bytes);
		return result;
	}
	*out = memory;
	return CUDA_SUCCESS;
}

/* All pinned memory is mapped and portable where addressing is unified. */
DRIVER_EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes)
{
	DRIVER_CALL;
	return host_alloc(out, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
}

DRIVER_EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	DRIVER_CALL;
	return host_alloc(out, bytes, flags);
}

/* Find the host allocation of that kind that begins at the address. */
static bool host_allocation(const void *address, enum driver_memory_kind kind,
			    struct driver_allocation *allocation)
{
	return driver_memory_use((uintptr_t)address, allocation) &&
	       allocation->base == (uintptr_t)address && allocation->kind == kind;
}

/* It is for all devices: what any of them may still do there finishes first. */
DRIVER_EXPORT CUresult cuMemFreeHost(void *address)
{
	DRIVER_CALL;
	struct driver_allocation allocation;
	CUresult result = driver_ready();

	if (!result)
		result = driver_capture_unsafe();
	if (result)
		return result;
	if (!address)
		return CUDA_SUCCESS;
	if (!host_allocation(address, DRIVER_MEMORY_PINNED, &allocation))
		return CUDA_ERROR_INVALID_VALUE;
	driver_context_drain_all();
	driver_memory_give((uintptr_t)address);
	return driver_context_state(allocation.context);
}

DRIVER_EXPORT CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags)
{
	DRIVER_CALL;
	struct driver_allocation allocation = {
		.base = (uintptr_t)address, .size = bytes, .kind = DRIVER_MEMORY_REGISTERED,
		.flags = flags,
	};
	CUresult result = driver_context_enter(&allocation.context);

	if (result)
		return result;
	if (!address || !bytes || bytes > UINTPTR_MAX - (uintptr_t)address ||
	    flags & ~(unsigned)(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
				CU_MEMHOSTREGISTER_READ_ONLY | CU_MEMHOSTREGISTER_IOMEMORY))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
		return driver_unsupported("cuMemHostRegister with CU_MEMHOSTREGISTER_IOMEMORY");
	allocation.device = allocation.context->device;
	return driver_memory_remember(&allocation);
}

DRIVER_EXPORT CUresult cuMemHostUnregister(void *address)
{
	DRIVER_CALL;
	struct driver_allocation allocation;
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	if (!host_allocation(address, DRIVER_MEMORY_REGISTERED, &allocation)) {
		/* Behind the first byte of what is registered: not its address. */
		if (driver_memory_kind_of((uintptr_t)address) == DRIVER_MEMORY_REGISTERED)
			return CUDA_ERROR_INVALID_VALUE;
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	}
	driver_context_drain_all();
	driver_memory_give((uintptr_t)address);
	return CUDA_SUCCESS;
}

static CUresult find_host(const void *address, struct driver_allocation *allocation)
{
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (result)
		return result;
	if (!driver_memory_find((uintptr_t)address, allocation) ||
	    (allocation->kind != DRIVER_MEMORY_PINNED &&
	     allocation->kind != DRIVER_MEMORY_REGISTERED))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address,
						    unsigned int flags)
{
	DRIVER_CALL;
	struct driver_allocation allocation;
	CUresult result = find_host(address, &allocation);

	if (result)
		return result;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUdeviceptr)(uintptr_t)address;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemHostGetFlags(unsigned int *flags, void *address)
{
	DRIVER_CALL;
	struct driver_allocation allocation;
	CUresult result = find_host(address, &allocation);

	if (result)
		return result;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = allocation.flags;
	return CUDA_SUCCESS;
}
