#include "memory.h"

#include "../arena.h"
#include "../memory.h"

#include <stdlib.h>
#include <string.h>

struct graph_allocation {
	struct graph_allocation *next;	/* of all */
	unsigned references;		/* of nodes, and one while it is live */
	struct CUctx_st *context;	/* held */
	bool is_gone;			/* its context has ended, and the memory with it */
	bool is_live;
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	CUmemAccessDesc access[];
};

/* Taken after the graph lock. */
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph_allocation *allocations;

static struct driver_graph_usage usages[BOARD_COUNT_MAX];	/* by device */

static void count(struct CUctx_st *context, size_t bytes, bool take)
{
	struct driver_graph_usage *usage = &usages[context->device->ordinal];
	size_t reserved;

	if (!take) {
		usage->used -= bytes;
		return;
	}
	usage->used += bytes;
	if (usage->used > usage->used_high)
		usage->used_high = usage->used;
	reserved = usage->used + driver_memory_kept(context->device);
	if (reserved > usage->reserved_high)
		usage->reserved_high = reserved;
}

/* The properties say where; in this process every device reaches all memory. */
static CUresult check_properties(const CUDA_MEM_ALLOC_NODE_PARAMS *params,
				 const struct driver_device *device)
{
	const CUmemPoolProps *pool = &params->poolProps;

	if (!params->bytesize || (params->accessDescCount && !params->accessDescs) ||
	    params->accessDescCount > BOARD_COUNT_MAX ||
	    pool->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (pool->handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
	    pool->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!driver_device_at(pool->location.id))
		return CUDA_ERROR_INVALID_VALUE;
	return pool->location.id == device->ordinal ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult driver_graph_allocation_make(struct CUctx_st *context,
				      const CUDA_MEM_ALLOC_NODE_PARAMS *params,
				      struct graph_allocation **out)
{
	struct graph_allocation *allocation;
	uintptr_t address;
	CUresult result = check_properties(params, context->device);

	if (result)
		return result;
	allocation = calloc(1, sizeof *allocation +
			       params->accessDescCount * sizeof *allocation->access);
	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!driver_memory_take_kept(context, params->bytesize, &address))
		result = driver_memory_take(context, params->bytesize, DRIVER_ARENA_ALIGN,
					    DRIVER_MEMORY_DEVICE, NULL, &address);
	if (result) {
		free(allocation);
		return result;
	}
	allocation->references = 1;
	allocation->context = context;
	driver_context_hold(context);
	allocation->params = *params;
	allocation->params.dptr = address;
	if (params->accessDescCount) {
		memcpy(allocation->access, params->accessDescs,
		       params->accessDescCount * sizeof *allocation->access);
		allocation->params.accessDescs = allocation->access;
	}
	pthread_mutex_lock(&memory_lock);
	allocation->next = allocations;
	allocations = allocation;
	count(context, params->bytesize, true);
	pthread_mutex_unlock(&memory_lock);
	*out = allocation;
	return CUDA_SUCCESS;
}

/* With the lock. */
static struct graph_allocation *find(CUdeviceptr address)
{
	struct graph_allocation *allocation = allocations;

	while (allocation && (allocation->params.dptr != address || allocation->is_gone))
		allocation = allocation->next;
	return allocation;
}

struct graph_allocation *driver_graph_allocation_of(CUdeviceptr address)
{
	struct graph_allocation *allocation;

	pthread_mutex_lock(&memory_lock);
	allocation = find(address);
	if (allocation)
		allocation->references++;
	pthread_mutex_unlock(&memory_lock);
	return allocation;
}

void driver_graph_allocation_hold(struct graph_allocation *allocation)
{
	pthread_mutex_lock(&memory_lock);
	allocation->references++;
	pthread_mutex_unlock(&memory_lock);
}

/* With the lock.  The last reference leaves the memory to others. */
static void drop(struct graph_allocation *allocation)
{
	struct graph_allocation **link = &allocations;

	if (--allocation->references)
		return;
	while (*link != allocation)
		link = &(*link)->next;
	*link = allocation->next;
	if (!allocation->is_gone) {
		count(allocation->context, allocation->params.bytesize, false);
		driver_memory_keep(allocation->params.dptr);
	}
	driver_context_drop(allocation->context);
	free(allocation);
}

void driver_graph_allocation_drop(struct graph_allocation *allocation)
{
	pthread_mutex_lock(&memory_lock);
	drop(allocation);
	pthread_mutex_unlock(&memory_lock);
}

const CUDA_MEM_ALLOC_NODE_PARAMS *driver_graph_allocation_params(
	const struct graph_allocation *allocation)
{
	return &allocation->params;
}

bool driver_graph_allocation_is_alike(const struct graph_allocation *allocation,
				      const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	const CUDA_MEM_ALLOC_NODE_PARAMS *own = &allocation->params;
	bool is_gone;

	pthread_mutex_lock(&memory_lock);
	is_gone = allocation->is_gone;
	pthread_mutex_unlock(&memory_lock);
	return !is_gone && own->bytesize == params->bytesize && !own->accessDescCount &&
	       !params->accessDescCount && !memcmp(&own->poolProps, &params->poolProps,
						   sizeof own->poolProps);
}

CUdeviceptr driver_graph_allocation_address(const struct graph_allocation *allocation)
{
	return allocation->params.dptr;
}

bool driver_graph_allocation_set_live(struct graph_allocation *allocation, bool live)
{
	bool changed;

	pthread_mutex_lock(&memory_lock);
	changed = allocation->is_live != live && !allocation->is_gone;
	if (changed) {
		allocation->is_live = live;
		if (live)
			allocation->references++;
		else
			drop(allocation);
	}
	pthread_mutex_unlock(&memory_lock);
	return changed;
}

/* ---- freeing what a launch allocated ---- */

bool driver_graph_memory_owns(CUdeviceptr address)
{
	bool owns;

	pthread_mutex_lock(&memory_lock);
	owns = find(address) != NULL;
	pthread_mutex_unlock(&memory_lock);
	return owns;
}

/* Not live any more; the reference that it had for that is the caller's. */
static struct graph_allocation *end_life(CUdeviceptr address)
{
	struct graph_allocation *allocation;

	pthread_mutex_lock(&memory_lock);
	allocation = find(address);
	if (allocation && allocation->is_live)
		allocation->is_live = false;
	else
		allocation = NULL;
	pthread_mutex_unlock(&memory_lock);
	return allocation;
}

CUresult driver_graph_memory_free(CUdeviceptr address)
{
	struct graph_allocation *allocation = end_life(address);
	struct CUctx_st *context;
	CUresult result;

	if (!allocation)
		return CUDA_ERROR_INVALID_VALUE;
	context = allocation->context;
	driver_stream_drain(context);
	result = driver_context_state(context);
	driver_graph_allocation_drop(allocation);
	return result;
}

struct free_operation {
	struct driver_operation base;
	struct graph_allocation *allocation;
};

static CUresult run_free(struct driver_operation *operation, CUresult state)
{
	(void)operation, (void)state;
	return CUDA_SUCCESS;
}

/* The memory may go when the operation does, also if it was never run. */
static void release_free(struct driver_operation *operation)
{
	driver_graph_allocation_drop(((struct free_operation *)operation)->allocation);
	free(operation);
}

CUresult driver_graph_memory_free_in(struct CUstream_st *stream, CUdeviceptr address)
{
	struct free_operation *operation = calloc(1, sizeof *operation);

	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->allocation = end_life(address);
	if (!operation->allocation) {
		free(operation);
		return CUDA_ERROR_INVALID_VALUE;
	}
	operation->base.run = run_free;
	operation->base.release = release_free;
	return driver_stream_submit(stream, &operation->base, DRIVER_SUBMIT_SHORT, NULL);
}

void driver_graph_memory_end_context(struct CUctx_st *context)
{
	pthread_mutex_lock(&memory_lock);
	for (struct graph_allocation *allocation = allocations; allocation;
	     allocation = allocation->next) {
		if (allocation->context != context || allocation->is_gone)
			continue;
		count(context, allocation->params.bytesize, false);
		allocation->is_gone = true;
	}
	pthread_mutex_unlock(&memory_lock);
}

/* ---- the device's account ---- */

struct driver_graph_usage driver_graph_memory_look(const struct driver_device *device, size_t *reserved)
{
	struct driver_graph_usage usage;

	pthread_mutex_lock(&memory_lock);
	usage = usages[device->ordinal];
	*reserved = usage.used + driver_memory_kept(device);
	pthread_mutex_unlock(&memory_lock);
	return usage;
}

void driver_graph_memory_reset_high(const struct driver_device *device, bool reserved)
{
	struct driver_graph_usage *usage = &usages[device->ordinal];

	pthread_mutex_lock(&memory_lock);
	if (reserved)
		usage->reserved_high = usage->used + driver_memory_kept(device);
	else
		usage->used_high = usage->used;
	pthread_mutex_unlock(&memory_lock);
}
