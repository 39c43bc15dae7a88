#include "../driver/advice.h"

#include "../driver/context_stack.h"
#include "../driver/memory.h"
#include "../driver/stream.h"

#include <string.h>
#include <unistd.h>

#define NUMA_NODES_MAX 1024	/* Linux: MAX_NUMNODES at most */

/* ---- ranges ---- */

/* Whole pages of the allocation, as advice is taken ("cuMemAdvise" of the driver API). */
static CUresult take_range(CUdeviceptr address, size_t bytes, uintptr_t *base, uintptr_t *end)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	struct driver_allocation allocation;
	CUresult result;

	if (!bytes || !driver_memory_find(address, &allocation) ||
	    driver_memory_kind_of(address) != DRIVER_MEMORY_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_memory_check(address, bytes);
	if (result)
		return result;
	*base = address / page * page;
	*end = (address + bytes + page - 1) / page * page;
	if (*base < allocation.base)
		*base = allocation.base;
	if (*end > allocation.base + allocation.size)
		*end = allocation.base + allocation.size;
	return CUDA_SUCCESS;
}

/* A location that memory can be at; of the kinds of the host, all are one place. */
static CUresult check_location(CUmemLocation *location)
{
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return driver_device_at(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	case CU_MEM_LOCATION_TYPE_HOST:
		location->id = 0;
		return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return location->id >= 0 && location->id < NUMA_NODES_MAX ? CUDA_SUCCESS :
									    CUDA_ERROR_INVALID_VALUE;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		*location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST_NUMA };
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUmemLocation location_of_device(CUdevice device)
{
	if (device == CU_DEVICE_CPU)
		return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST };
	return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
}

/* ---- saying ---- */

static CUresult check_advice(CUmem_advise advice, CUmemLocation *location)
{
	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		return CUDA_SUCCESS;	/* of no location */
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		return check_location(location);
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		if (location->type != CU_MEM_LOCATION_TYPE_DEVICE &&
		    location->type != CU_MEM_LOCATION_TYPE_HOST)
			return CUDA_ERROR_INVALID_VALUE;
		return check_location(location);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

/* `what`: an advice, or 0 for a prefetch. */
static CUresult say(CUdeviceptr address, size_t bytes, unsigned what, const CUmemLocation *location)
{
	uintptr_t base, end;
	CUresult result = take_range(address, bytes, &base, &end);

	if (!result && driver_advice_say(base, end, what, location))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	return result;
}

static CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	struct CUctx_st *context;
	CUresult result = driver_context_enter(&context);

	if (!result)
		result = check_advice(advice, &location);
	return result ? result : say(address, bytes, advice, &location);
}

DRIVER_EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
				   CUdevice device)
{
	DRIVER_CALL;
	return advise(address, bytes, advice, location_of_device(device));
}

DRIVER_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
				      CUmemLocation location)
{
	DRIVER_CALL;
	return advise(address, bytes, advice, location);
}

static CUresult prefetch(CUdeviceptr address, size_t bytes, CUmemLocation location, CUstream handle)
{
	struct CUstream_st *stream;
	CUresult result = driver_stream_enter(handle, &stream);

	if (!result)
		result = check_location(&location);
	return result ? result : say(address, bytes, 0, &location);
}

DRIVER_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device,
					  CUstream stream)
{
	DRIVER_CALL;
	return prefetch(address, bytes, location_of_device(device), stream);
}

DRIVER_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes,
					     CUmemLocation location, unsigned int flags,
					     CUstream stream)
{
	DRIVER_CALL;
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(address, bytes, location, stream);
}

/* ---- asking ---- */

static int32_t device_of_location(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id :
	       location->type == CU_MEM_LOCATION_TYPE_HOST   ? CU_DEVICE_CPU :
							       CU_DEVICE_INVALID;
}

static void list_accessors(int32_t *out, size_t count, uint32_t accessed_by)
{
	size_t at = 0;

	for (int32_t device = 0; device < BOARD_COUNT_MAX && at < count; device++)
		if (accessed_by >> device & 1)
			out[at++] = device;
	if (accessed_by & DRIVER_ADVICE_HOST && at < count)
		out[at++] = CU_DEVICE_CPU;
	while (at < count)
		out[at++] = CU_DEVICE_INVALID;
}

static CUresult write_attribute(void *out, size_t bytes, CUmem_range_attribute attribute,
				const struct driver_advice *advice)
{
	int32_t value;

	if (!out || !bytes || bytes % sizeof value ||
	    (bytes != sizeof value && attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		value = advice->read_mostly;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		value = device_of_location(&advice->preferred);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		list_accessors(out, bytes / sizeof value, advice->accessed_by);
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		value = device_of_location(&advice->prefetched);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		value = (int32_t)advice->preferred.type;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		value = advice->preferred.id;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		value = (int32_t)advice->prefetched.type;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		value = advice->prefetched.id;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	memcpy(out, &value, sizeof value);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuMemRangeGetAttributes(void **out, size_t *sizes,
					       CUmem_range_attribute *attributes, size_t count,
					       CUdeviceptr address, size_t bytes)
{
	DRIVER_CALL;
	CUresult result = driver_ready();
	struct driver_advice advice;
	uintptr_t base, end;

	if (result)
		return result;
	if (!out || !sizes || !attributes || !count)
		return CUDA_ERROR_INVALID_VALUE;
	result = take_range(address, bytes, &base, &end);
	if (result)
		return result;
	advice = driver_advice_of(base, end);
	for (size_t k = 0; !result && k < count; k++)
		result = write_attribute(out[k], sizes[k], attributes[k], &advice);
	return result;
}

DRIVER_EXPORT CUresult cuMemRangeGetAttribute(void *out, size_t size, CUmem_range_attribute attribute,
					      CUdeviceptr address, size_t bytes)
{
	return cuMemRangeGetAttributes(&out, &size, &attribute, 1, address, bytes);
}
