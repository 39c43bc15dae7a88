/* Resources: a device's multiprocessors, and how they are divided for green contexts. */
#include "resource.h"

#include "../driver/handle.h"
#include "../driver/stream.h"

#include <stdlib.h>
#include <string.h>

/* What a CUdevResource of this driver holds where the API sees padding. */
struct part {
	uint64_t mark;			/* PART_MARK: made here */
	uint64_t split;			/* which split it came from; 0: asked of a device or context */
	int32_t device;
	uint32_t reserved;
	struct driver_partition partition;
};

#define PART_MARK 0x66747067755f736dull

_Static_assert(sizeof(struct part) <= sizeof(((CUdevResource *)0)->_internal_padding),
	       "fits where the API leaves room");

/* ---- partitions ---- */

static struct driver_partition partition_all(unsigned count)
{
	struct driver_partition partition = { { 0 } };

	for (unsigned k = 0; k < count; k++)
		partition.bits[k / 64] |= 1ull << k % 64;
	return partition;
}

/* The first `count` of what is left, which are left no longer. */
static struct driver_partition partition_take(struct driver_partition *left, unsigned count)
{
	struct driver_partition taken = { { 0 } };

	for (unsigned k = 0; k < 64 * DRIVER_PARTITION_WORDS && count; k++) {
		uint64_t bit = 1ull << k % 64;

		if (!(left->bits[k / 64] & bit))
			continue;
		left->bits[k / 64] &= ~bit;
		taken.bits[k / 64] |= bit;
		count--;
	}
	return taken;
}

/* CUDA C++ Programming Guide, "Green Contexts": how few multiprocessors a part may have, and what
 * its number is a multiple of. */
static unsigned least_part(const struct driver_device *device)
{
	unsigned sm = device->capability->sm;

	return sm >= 90 ? 8 : sm >= 80 ? 4 : 2;
}

static unsigned alignment(const struct driver_device *device)
{
	return device->capability->sm >= 90 ? 8 : 2;
}

/* ---- resources ---- */

static void describe(const struct driver_device *device, const struct driver_partition *partition,
		     uint64_t split, CUdevResource *resource)
{
	const struct part part = {
		.mark = PART_MARK, .split = split, .device = device->ordinal,
		.partition = *partition,
	};

	*resource = (CUdevResource){ .type = CU_DEV_RESOURCE_TYPE_INVALID };
	if (!driver_partition_count(partition))
		return;
	resource->type = CU_DEV_RESOURCE_TYPE_SM;
	resource->sm.smCount = driver_partition_count(partition);
	resource->sm.minSmPartitionSize = least_part(device);
	resource->sm.smCoscheduledAlignment = alignment(device);
	memcpy(resource->_internal_padding, &part, sizeof part);
}

static CUresult read_part(const CUdevResource *resource, struct part *part,
			  struct driver_device **device)
{
	struct driver_partition all;

	if (resource->type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	memcpy(part, resource->_internal_padding, sizeof *part);
	*device = driver_device_at(part->device);
	if (part->mark != PART_MARK || !*device)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	all = partition_all((*device)->model->multiprocessors);
	for (unsigned k = 0; k < DRIVER_PARTITION_WORDS; k++)
		if (part->partition.bits[k] & ~all.bits[k])
			return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	return CUDA_SUCCESS;
}

CUresult api_resource_tell(const struct driver_device *device, const struct CUgreenCtx_st *green,
			   CUdevResource *resource, CUdevResourceType type)
{
	struct driver_partition all = partition_all(device->model->multiprocessors);

	if (!resource)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	describe(device, green ? &green->partition : &all, 0, resource);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *resource,
					      CUdevResourceType type)
{
	DRIVER_CALL;
	struct driver_device *device;
	CUresult result = driver_device_of(ordinal, &device);

	return result ? result : api_resource_tell(device, NULL, resource, type);
}

DRIVER_EXPORT CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource *resource,
					   CUdevResourceType type)
{
	DRIVER_CALL;
	struct CUgreenCtx_st *green;
	struct CUctx_st *context;
	CUresult result = driver_ready();

	if (!result)
		result = driver_context_named(handle, &context, &green);
	return result ? result : api_resource_tell(context->device, green, resource, type);
}

DRIVER_EXPORT CUresult cuStreamGetDevResource(CUstream handle, CUdevResource *resource,
					      CUdevResourceType type)
{
	DRIVER_CALL;
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	return result ? result : api_resource_tell(stream->context->device, stream->green, resource, type);
}

/* A number for each split: what may be joined again came from the same one. */
static uint64_t next_split(void)
{
	static uint64_t last;

	return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

/* What may be divided: a device's, or a context's. */
static CUresult divisible(const CUdevResource *input, struct part *part,
			  struct driver_device **device)
{
	CUresult result = driver_ready();

	if (!result)
		result = input ? read_part(input, part, device) : CUDA_ERROR_INVALID_VALUE;
	if (!result && part->split)
		result = CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	return result;
}

DRIVER_EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource *results, unsigned int *groups,
						   const CUdevResource *input,
						   CUdevResource *remainder, unsigned int flags,
						   unsigned int wanted)
{
	DRIVER_CALL;
	const unsigned known = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
			       CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
	struct driver_device *device;
	struct part part;
	unsigned least, step, count, possible;
	uint64_t split;
	CUresult result = divisible(input, &part, &device);

	if (result)
		return result;
	count = driver_partition_count(&part.partition);
	if (!groups || flags & ~known || wanted > count ||
	    (flags & CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE &&
	     device->capability->sm < 90))
		return CUDA_ERROR_INVALID_VALUE;
	least = least_part(device);
	step = alignment(device);
	if (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING)
		least = step = 2;
	if (wanted < least)
		wanted = least;
	wanted = (wanted + step - 1) / step * step;
	possible = count / wanted;
	if (!results) {
		*groups = possible;
		return CUDA_SUCCESS;
	}
	if (!possible || !*groups)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	if (*groups > possible)
		*groups = possible;
	split = next_split();
	for (unsigned k = 0; k < *groups; k++) {
		struct driver_partition taken = partition_take(&part.partition, wanted);

		describe(device, &taken, split, &results[k]);
	}
	if (remainder)
		describe(device, &part.partition, split, remainder);
	return CUDA_SUCCESS;
}

/* How many multiprocessors a group gets; 0: there is no way. */
static unsigned group_size(const struct driver_device *device,
			   const CU_DEV_SM_RESOURCE_GROUP_PARAMS *group, unsigned left)
{
	unsigned together = group->coscheduledSmCount ? group->coscheduledSmCount :
							alignment(device);
	bool fills = group->flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
	unsigned most = device->capability->sm >= 90 ? 32 : 2;

	if (together > most || together % 2 || group->smCount % 2 || group->smCount > left ||
	    left < together || group->flags & ~(unsigned)CU_DEV_SM_RESOURCE_GROUP_BACKFILL)
		return 0;
	if (!group->smCount)
		return fills ? left : left / together * together;
	if (group->smCount < together || (!fills && group->smCount % together))
		return 0;
	return group->smCount;
}

DRIVER_EXPORT CUresult cuDevSmResourceSplit(CUdevResource *results, unsigned int groups,
					    const CUdevResource *input, CUdevResource *remainder,
					    unsigned int flags,
					    CU_DEV_SM_RESOURCE_GROUP_PARAMS *wanted)
{
	DRIVER_CALL;
	struct driver_device *device;
	struct part part;
	uint64_t split;
	CUresult result = divisible(input, &part, &device);

	if (result)
		return result;
	if (!groups || !wanted || flags)
		return CUDA_ERROR_INVALID_VALUE;
	split = next_split();
	for (unsigned k = 0; k < groups; k++) {
		unsigned size = group_size(device, &wanted[k], driver_partition_count(&part.partition));
		struct driver_partition taken;

		/* To find out that there are none is no error where nothing is made. */
		if (!size && (results || wanted[k].smCount))
			return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
		taken = partition_take(&part.partition, size);
		wanted[k].smCount = size;
		if (!results)
			continue;
		describe(device, &taken, split, &results[k]);
		if (wanted[k].coscheduledSmCount)
			results[k].sm.smCoscheduledAlignment = wanted[k].coscheduledSmCount;
	}
	if (remainder)
		describe(device, &part.partition, split, remainder);
	return CUDA_SUCCESS;
}

/* Descriptors are never destroyed: the API has no function for that. */
DRIVER_EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources,
						 unsigned int count)
{
	DRIVER_CALL;
	struct driver_partition joined = { { 0 } };
	struct driver_device *device, *first = NULL;
	uint64_t split = 0;
	CUdevResourceDesc made;
	CUresult result = driver_ready();

	if (result)
		return result;
	if (!out || !resources || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned k = 0; k < count; k++) {
		struct part part;

		result = read_part(&resources[k], &part, &device);
		if (result)
			return result;
		if (k && (device != first || !split || part.split != split))
			return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
		for (unsigned w = 0; w < DRIVER_PARTITION_WORDS; w++) {
			if (joined.bits[w] & part.partition.bits[w])
				return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
			joined.bits[w] |= part.partition.bits[w];
		}
		first = device;
		split = part.split;
	}
	made = malloc(sizeof *made);
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = (struct CUdevResourceDesc_st){ first->ordinal, joined };
	if (driver_handle_add(made, DRIVER_KIND_RESOURCES, NULL)) {
		free(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = made;
	return CUDA_SUCCESS;
}
