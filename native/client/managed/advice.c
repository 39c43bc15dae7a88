/* What a program says of its managed memory: which streams may use it, where it had better be, and what it asks of that.
 *
 * The words are kept for whole allocations (struct managed_block); only attachments and prefetches change anything. */
#include "../addresses/ranges.h"
#include "../ground/thread.h"
#include "../handles/streams.h"
#include "managed.h"
#include "pages.h"
#include "regions.h"

/* The block of an address, with the lock; NULL: it is no managed allocation. */
static struct managed_block *block_find(uint64_t address, struct managed_region **region)
{
	struct managed_region *found = client_pages_find(address);

	*region = found;
	return found && found->device ? client_pages_block(found, (address - found->base) / PAGE_BYTES)
				      : NULL;
}

static bool managed_range(uint64_t address, uint64_t bytes)
{
	struct client_range range;

	return bytes && client_memory_find(address, &range) && range.managed && !range.mapped &&
	       bytes <= range.base + range.bytes - address;
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags)
{
	uint64_t stream;
	CUresult result = client_stream_enter(hStream, &stream);
	struct managed_region *region;
	struct managed_block *block;

	if (result != CUDA_SUCCESS)
		return result;
	if (!client_managed_offered())
		return client_managed_refuse();
	if ((flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
	     flags != CU_MEM_ATTACH_SINGLE) || !managed_range(dptr, length ? length : 1))
		return CUDA_ERROR_INVALID_VALUE;
	/* CUDA's legacy stream stands for all. */
	if (flags == CU_MEM_ATTACH_SINGLE && stream == (uint64_t)(uintptr_t)CU_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	client_pages_lock();
	block = block_find(dptr, &region);
	/* Variables stay everybody's, which allows all that being attached would. */
	if (block) {
		block->attach = flags == CU_MEM_ATTACH_HOST     ? ATTACH_HOST
				: flags == CU_MEM_ATTACH_SINGLE ? ATTACH_STREAM
								: ATTACH_GLOBAL;
		block->stream = client_managed_key(stream);
	}
	client_pages_unlock();
	return CUDA_SUCCESS;
}

static bool location_known(CUmemLocation location)
{
	switch ((int)location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return location.id >= 0 && location.id < farbus_client.device_count;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return true;
	default:
		return false;
	}
}

static CUmemLocation location_of(CUdevice device)
{
	return (CUmemLocation){
		.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
						: CU_MEM_LOCATION_TYPE_DEVICE,
		.id = device == CU_DEVICE_CPU ? 0 : device,
	};
}

/* Remember it of the whole allocation, whatever part it was said of: it is a hint. */
static void advise(uint64_t address, CUmem_range_attribute attribute, int value)
{
	struct managed_region *region;
	struct managed_block *block;

	client_pages_lock();
	block = block_find(address, &region);
	if (block)
		block->advice[attribute - CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY] = value;
	client_pages_unlock();
}

static int advice_of(CUmemLocation location)
{
	return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU;
}

/* Who accesses it: a bit for each device, one for this process; MANAGED_LOCATION_NONE for nobody, as at first. */
#define ACCESSORS 30
#define ACCESSED_HERE (1 << ACCESSORS)

static int accessor(CUmemLocation location)
{
	if (location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return ACCESSED_HERE;
	return location.id < ACCESSORS ? 1 << location.id : 0;
}

static void advise_access(uint64_t address, CUmemLocation location, bool accesses)
{
	struct managed_region *region;
	struct managed_block *block;
	int *who;

	client_pages_lock();
	block = block_find(address, &region);
	if (block) {
		who = &block->advice[CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY - CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY];
		if (*who == MANAGED_LOCATION_NONE)
			*who = 0;
		*who = accesses ? *who | accessor(location) : *who & ~accessor(location);
		if (!*who)
			*who = MANAGED_LOCATION_NONE;
	}
	client_pages_unlock();
}

/* As many as there is room for, devices first. */
static void list_accessors(int who, int *out, size_t count)
{
	size_t at = 0;

	if (who == MANAGED_LOCATION_NONE)
		who = 0;
	for (int device = 0; device < ACCESSORS && at < count; device++)
		if (who >> device & 1)
			out[at++] = device;
	if (who & ACCESSED_HERE && at < count)
		out[at++] = CU_DEVICE_CPU;
	while (at < count)
		out[at++] = MANAGED_LOCATION_NONE;
}

/* Pages come and go as work needs them, so that advice changes nothing. */
CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location)
{
	CUresult result = client_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!client_managed_offered())
		return client_managed_refuse();
	if (!managed_range(devPtr, count))
		return CUDA_ERROR_INVALID_VALUE;
	if (advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY &&
	    advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION && !location_known(location))
		return CUDA_ERROR_INVALID_DEVICE;
	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		advise(devPtr, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, advice == CU_MEM_ADVISE_SET_READ_MOSTLY);
		return CUDA_SUCCESS;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		advise(devPtr, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, advice_of(location));
		return CUDA_SUCCESS;
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		advise(devPtr, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, MANAGED_LOCATION_NONE);
		return CUDA_SUCCESS;
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
		advise_access(devPtr, location, true);
		return CUDA_SUCCESS;
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		advise_access(devPtr, location, false);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
	return cuMemAdvise_v2(devPtr, count, advice, location_of(device));
}

/* To a GPU: what is dirty travels now and not with the next launch.  To this process: it
 * comes when it is touched, or when the program has waited. */
CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
			       unsigned int flags, CUstream hStream)
{
	uint64_t stream;
	CUresult result = client_stream_enter(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!client_managed_offered())
		return client_managed_refuse();
	if (flags || !managed_range(devPtr, count))
		return CUDA_ERROR_INVALID_VALUE;
	if (!location_known(location))
		return CUDA_ERROR_INVALID_DEVICE;
	advise(devPtr, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, advice_of(location));
	return location.type == CU_MEM_LOCATION_TYPE_DEVICE
		       ? client_managed_before_range(stream, devPtr, count, false)
		       : CUDA_SUCCESS;
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)
{
	return cuMemPrefetchAsync_v2(devPtr, count, location_of(dstDevice), 0, hStream);
}

CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
				CUdeviceptr devPtr, size_t count)
{
	CUresult result = client_enter();
	int value = MANAGED_LOCATION_NONE, *out = data;
	struct managed_region *region;
	const struct managed_block *block;

	if (result != CUDA_SUCCESS)
		return result;
	if (!client_managed_offered())
		return client_managed_refuse();
	if (!data || !dataSize || dataSize % sizeof(int) || !managed_range(devPtr, count) ||
	    (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && dataSize != sizeof(int)))
		return CUDA_ERROR_INVALID_VALUE;
	client_pages_lock();
	block = block_find(devPtr, &region);
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		if (block)
			value = block->advice[attribute - CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY];
		else if (attribute == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY)
			value = 0;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		if (block)
			value = block->advice[attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE
						      ? 1 : 3];
		value = value == MANAGED_LOCATION_NONE   ? CU_MEM_LOCATION_TYPE_INVALID
			: value == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
						 : CU_MEM_LOCATION_TYPE_DEVICE;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		if (block)
			value = block->advice[attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID
						      ? 1 : 3];
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	client_pages_unlock();
	if (result != CUDA_SUCCESS)
		return result;
	if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY)
		list_accessors(value, out, dataSize / sizeof(int));
	else
		out[0] = value;
	return CUDA_SUCCESS;
}

CUresult cuMemRangeGetAttributes(void **data, size_t *dataSizes, CUmem_range_attribute *attributes,
				 size_t numAttributes, CUdeviceptr devPtr, size_t count)
{
	CUresult result = CUDA_SUCCESS;

	if (!data || !dataSizes || !attributes || !numAttributes)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < numAttributes && result == CUDA_SUCCESS; i++)
		result = cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);
	return result;
}

/* ---- the same in lists ---- */

/* Every range is managed memory, and every place a place. */
static CUresult batch_check(const CUdeviceptr *addresses, const size_t *sizes, size_t count,
			    const CUmemLocation *locations, const size_t *firsts, size_t location_count,
			    unsigned long long flags)
{
	if (!addresses || !sizes || !count || flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!managed_range(addresses[i], sizes[i]))
			return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < location_count; i++) {
		if (!location_known(locations[i]))
			return CUDA_ERROR_INVALID_DEVICE;
		if (firsts[i] >= count || (i ? firsts[i] <= firsts[i - 1] : firsts[i] != 0))
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
				 CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs,
				 size_t numPrefetchLocs, unsigned long long flags, CUstream hStream)
{
	CUresult result = client_enter();
	size_t at = 0;

	if (result != CUDA_SUCCESS)
		return result;
	if (!client_managed_offered())
		return client_managed_refuse();
	if (!prefetchLocs || !prefetchLocIdxs || !numPrefetchLocs || numPrefetchLocs > count)
		return CUDA_ERROR_INVALID_VALUE;
	result = batch_check(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags);
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (at + 1 < numPrefetchLocs && i == prefetchLocIdxs[at + 1])
			at++;
		result = cuMemPrefetchAsync_v2(dptrs[i], sizes[i], prefetchLocs[at], 0, hStream);
	}
	return result;
}

/* What was discarded may hold anything, so also what it held. */
CUresult cuMemDiscardBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
				unsigned long long flags, CUstream hStream)
{
	uint64_t stream;
	CUresult result = client_stream_enter(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!client_managed_offered())
		return client_managed_refuse();
	return batch_check(dptrs, sizes, count, NULL, NULL, 0, flags);
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
					   CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs,
					   size_t numPrefetchLocs, unsigned long long flags,
					   CUstream hStream)
{
	return cuMemPrefetchBatchAsync(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
				       numPrefetchLocs, flags, hStream);
}
