#include "fill.h"

#include "copy.h"
#include "virtual.h"

#include <stdlib.h>
#include <string.h>

struct fill_operation {
	struct driver_operation base;
	uintptr_t to;
	size_t pitch, width, height;	/* width in elements */
	unsigned element;		/* 1, 2 or 4 bytes */
	uint32_t value;
};

static void fill_row(uintptr_t to, unsigned element, uint32_t value, size_t count)
{
	switch (element) {
	case 1:
		memset((void *)to, (int)value, count);
		break;
	case 2:
		for (size_t i = 0; i < count; i++)
			((uint16_t *)to)[i] = (uint16_t)value;
		break;
	default:
		for (size_t i = 0; i < count; i++)
			((uint32_t *)to)[i] = value;
	}
}

static void put_fill(const void *opaque, char *memory, size_t at, size_t bytes)
{
	const struct fill_operation *fill = opaque;

	(void)at;
	fill_row((uintptr_t)memory, fill->element, fill->value, bytes / fill->element);
	engine_strict_mark(memory, bytes, ENGINE_MEMORY_WRITTEN);
}

static CUresult run_fill(struct driver_operation *operation, CUresult state)
{
	const struct fill_operation *fill = (struct fill_operation *)operation;
	CUresult result = CUDA_SUCCESS;

	(void)state;
	for (size_t y = 0; y < fill->height && !result; y++)
		result = driver_virtual_put(fill->to + y * fill->pitch, fill->width * fill->element, put_fill, fill);
	return result;
}

static void release_fill(struct driver_operation *operation)
{
	free(operation);
}

CUresult driver_fill_check(const CUDA_MEMSET_NODE_PARAMS *params)
{
	struct copy_side side = { params->dst, params->pitch, 0 };
	struct copy_box box = { 0, params->height, 1 };

	if (__builtin_mul_overflow(params->width, (size_t)params->elementSize, &box.width) ||
	    params->dst % params->elementSize ||
	    (params->height > 1 && (params->pitch < box.width || params->pitch % params->elementSize)))
		return CUDA_ERROR_INVALID_VALUE;
	return driver_memory_check_target(params->dst, driver_copy_span(&box, &side));
}

static struct fill_operation *fill_make(const CUDA_MEMSET_NODE_PARAMS *params)
{
	struct fill_operation *operation = calloc(1, sizeof *operation);

	if (!operation)
		return NULL;
	operation->base.run = run_fill;
	operation->base.release = release_fill;
	operation->to = params->dst;
	operation->pitch = params->pitch;
	operation->width = params->width;
	operation->height = params->height;
	operation->element = params->elementSize;
	operation->value = params->value;
	return operation;
}

/* Asynchronous also without Async in the name, except for pinned and managed memory,
 * which the program could look at next (CUDA Driver API, "API synchronization behavior"). */
CUresult driver_fill_submit(struct CUstream_st *stream, const CUDA_MEMSET_NODE_PARAMS *params, bool async)
{
	struct fill_operation *operation = fill_make(params);
	enum driver_memory_kind kind = driver_memory_kind_of(params->dst);
	unsigned flags = 0;

	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!async && (kind == DRIVER_MEMORY_MANAGED || !driver_memory_is_on_device(kind)))
		flags |= DRIVER_SUBMIT_WAIT;
	if (params->width * params->elementSize <= DRIVER_COPY_SHORT / params->height)
		flags |= DRIVER_SUBMIT_SHORT;
	return driver_stream_submit(stream, &operation->base, flags, NULL);
}

/* The fill of a graph: the memory may have been freed since it was prepared. */
static CUresult run_graph_fill(struct driver_operation *operation, CUresult state)
{
	const struct fill_operation *fill = (struct fill_operation *)operation;
	const CUDA_MEMSET_NODE_PARAMS params = {
		fill->to, fill->pitch, fill->value, fill->element, fill->width, fill->height,
	};

	return driver_fill_check(&params) ? CUDA_ERROR_ILLEGAL_ADDRESS : run_fill(operation, state);
}

CUresult driver_fill_prepare(const CUDA_MEMSET_NODE_PARAMS *params,
			     struct driver_operation **out)
{
	struct fill_operation *operation;
	CUresult result;

	if (!params->width || !params->height ||
	    (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4))
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_fill_check(params);
	if (result)
		return result;
	operation = fill_make(params);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->base.run = run_graph_fill;
	*out = &operation->base;
	return CUDA_SUCCESS;
}
