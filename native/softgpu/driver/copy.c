#include "copy.h"

#include "array.h"
#include "virtual.h"

#include <stdlib.h>
#include <string.h>

/* Pageable memory is copied aside for an asynchronous copy up to this size; a
 * larger copy waits for its turn instead, as CUDA's staging buffers do. */
#define STAGE_MAX (1ul << 20)

struct copy_operation {
	struct driver_operation base;
	struct copy_box box;
	struct copy_side from, to;
	unsigned char staged[];
};

static void put_row(const void *from, char *memory, size_t at, size_t bytes)
{
	memmove(memory, (const char *)from + at, bytes);
	engine_strict_copy(memory, (const char *)from + at, bytes);
}

static CUresult run_copy(struct driver_operation *operation, CUresult state)
{
	const struct copy_operation *copy = (struct copy_operation *)operation;
	CUresult result = CUDA_SUCCESS;

	(void)state;
	for (size_t z = 0; z < copy->box.depth; z++) {
		for (size_t y = 0; y < copy->box.height; y++) {
			uintptr_t to = copy->to.address + z * copy->to.slice + y * copy->to.pitch;
			const void *from = (const void *)(copy->from.address +
							  z * copy->from.slice +
							  y * copy->from.pitch);

			if (!result)
				result = driver_virtual_put(to, copy->box.width, put_row, from);
		}
	}
	return result;
}

static void release_copy(struct driver_operation *operation)
{
	free(operation);
}

size_t driver_copy_span(const struct copy_box *box, const struct copy_side *side)
{
	size_t rows, slices, span;

	if (__builtin_mul_overflow(box->height - 1, side->pitch, &rows) ||
	    __builtin_mul_overflow(box->depth - 1, side->slice, &slices) ||
	    __builtin_add_overflow(rows, slices, &span) ||
	    __builtin_add_overflow(span, box->width, &span))
		return SIZE_MAX;
	return span;
}

/* Is all of it memory, for the one side of a copy or for the other? */
static CUresult check_memory(const struct copy_box *box, const struct copy_side *side, bool is_target)
{
	size_t span = driver_copy_span(box, side);

	return is_target ? driver_memory_check_target(side->address, span)
			 : driver_memory_check(side->address, span);
}

/* One side of a copy: is it where it was said to be, and all of it memory? */
static CUresult check_side(const struct copy_box *box, const struct copy_side *side, bool is_target,
			   CUmemorytype expected, enum driver_memory_kind *kind)
{
	*kind = driver_memory_kind_of(side->address);
	if (*kind == DRIVER_MEMORY_NONE)
		return expected == CU_MEMORYTYPE_DEVICE || !side->address ?
			CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	return check_memory(box, side, is_target);
}

/* Copy the rows of a pageable source into the operation, one after another. */
static void stage(struct copy_operation *copy)
{
	struct copy_operation aside = {
		.box = copy->box, .from = copy->from,
		.to = { (uintptr_t)copy->staged, copy->box.width,
			copy->box.width * copy->box.height },
	};

	run_copy(&aside.base, CUDA_SUCCESS);
	copy->from = aside.to;
}

/* ---- places ---- */

/* An array has its own pitch, and ends where it ends. */
static CUresult side_of_array(struct copy_side *side, const struct copy_place *place, const struct copy_box *box)
{
	struct CUarray_st *array;
	CUresult result = driver_array_of_texels(place->array, &array);
	size_t width;

	if (result)
		return result;
	width = array->descriptor.Width * array->texel_bytes;
	if (place->x > width || box->width > width - place->x || place->y > array->rows ||
	    box->height > array->rows - place->y || place->z > array->slices ||
	    box->depth > array->slices - place->z || place->x % array->texel_bytes ||
	    box->width % array->texel_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*side = (struct copy_side){
		.address = array->memory + place->z * array->slice + place->y * array->pitch + place->x,
		.pitch = array->pitch,
		.slice = array->slice,
	};
	return CUDA_SUCCESS;
}

static CUresult side_of(struct copy_side *side, const struct copy_place *place, const struct copy_box *box)
{
	CUmemorytype type = place->type;
	size_t least, pitch = place->pitch, height = place->height;

	if (type == CU_MEMORYTYPE_ARRAY)
		return side_of_array(side, place, box);
	if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_add_overflow(place->x, box->width, &least))
		return CUDA_ERROR_INVALID_VALUE;
	/* A pitch of zero is allowed where no second row makes it matter. */
	if (!pitch && box->height <= 1 && box->depth <= 1 && !place->y && !place->z)
		pitch = least;
	if (pitch < least)
		return CUDA_ERROR_INVALID_VALUE;
	if (!height)
		height = place->y + box->height;
	if (box->depth > 1 && height < place->y + box->height)
		return CUDA_ERROR_INVALID_VALUE;
	side->pitch = pitch;
	if (__builtin_mul_overflow(pitch, height, &side->slice))
		return CUDA_ERROR_INVALID_VALUE;
	side->address = (type == CU_MEMORYTYPE_HOST ? (uintptr_t)place->host : (uintptr_t)place->device) +
			place->z * side->slice + place->y * pitch + place->x;
	return CUDA_SUCCESS;
}

/* Arrays are memory of a device. */
static CUmemorytype type_of(const struct copy_place *place)
{
	return place->type == CU_MEMORYTYPE_ARRAY ? CU_MEMORYTYPE_DEVICE : place->type;
}

/* What a 3D copy says. */
CUresult driver_copy_read(const CUDA_MEMCPY3D *copy, struct copy_box *box, struct copy_place *to,
			  struct copy_place *from)
{
	if (!copy || copy->srcLOD || copy->dstLOD)
		return CUDA_ERROR_INVALID_VALUE;
	*box = (struct copy_box){ copy->WidthInBytes, copy->Height, copy->Depth };
	*from = (struct copy_place){ copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray,
				copy->srcXInBytes, copy->srcY, copy->srcZ, copy->srcPitch,
				copy->srcHeight };
	*to = (struct copy_place){ copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray,
			      copy->dstXInBytes, copy->dstY, copy->dstZ, copy->dstPitch,
			      copy->dstHeight };
	return CUDA_SUCCESS;
}

void driver_copy_describe(const struct copy_box *box, const struct copy_place *to, const struct copy_place *from,
			  CUDA_MEMCPY3D *copy)
{
	*copy = (CUDA_MEMCPY3D){
		.srcXInBytes = from->x, .srcY = from->y, .srcZ = from->z,
		.srcMemoryType = from->type, .srcHost = from->host, .srcDevice = from->device,
		.srcArray = from->array, .srcPitch = from->pitch, .srcHeight = from->height,
		.dstXInBytes = to->x, .dstY = to->y, .dstZ = to->z,
		.dstMemoryType = to->type, .dstHost = (void *)to->host, .dstDevice = to->device,
		.dstArray = to->array, .dstPitch = to->pitch, .dstHeight = to->height,
		.WidthInBytes = box->width, .Height = box->height, .Depth = box->depth,
	};
}

CUresult driver_copy_settle(const struct copy_box *box, const struct copy_place *to, const struct copy_place *from,
			    struct copy_sides *sides)
{
	CUresult result = side_of(&sides->from, from, box);

	if (!result)
		result = side_of(&sides->to, to, box);
	if (result)
		return result;
	sides->is_empty = !box->width || !box->height || !box->depth;
	if (sides->is_empty)
		return CUDA_SUCCESS;
	result = check_side(box, &sides->to, true, type_of(to), &sides->to_kind);
	return result ? result : check_side(box, &sides->from, false, type_of(from), &sides->from_kind);
}

/* ---- copies of streams ---- */

static struct copy_operation *copy_make(const struct copy_box *box, const struct copy_sides *sides,
					size_t staged_bytes)
{
	struct copy_operation *copy = calloc(1, sizeof *copy + staged_bytes);

	if (!copy)
		return NULL;
	copy->base.run = run_copy;
	copy->base.release = release_copy;
	copy->box = *box;
	copy->to = sides->to;
	copy->from = sides->from;
	return copy;
}

/* When may a copy return?  (CUDA Driver API, "API synchronization behavior")
 *   pageable source       as soon as the source was read
 *   pageable destination  when it is complete
 *   host to host          when it is complete
 *   device to device      at once, also from the functions without Async
 *   managed               when it is complete, but from Async: the program may touch it then
 *   pinned                at once from Async, complete from the others */
CUresult driver_copy_submit(struct CUstream_st *stream, const struct copy_box *box,
			    const struct copy_sides *sides, bool async)
{
	struct copy_operation *copy;
	size_t bytes = box->width * box->height * box->depth;	/* both spans are below SIZE_MAX */
	bool to_device = driver_memory_is_on_device(sides->to_kind);
	bool from_device = driver_memory_is_on_device(sides->from_kind);
	bool from_pageable = sides->from_kind == DRIVER_MEMORY_NONE;
	bool managed = sides->to_kind == DRIVER_MEMORY_MANAGED ||
		       sides->from_kind == DRIVER_MEMORY_MANAGED;
	bool staged = async && from_pageable && to_device && bytes <= STAGE_MAX;
	unsigned flags = 0;

	if (sides->to_kind == DRIVER_MEMORY_NONE || (from_pageable && !staged) ||
	    (!to_device && !from_device) || (!async && (managed || !(to_device && from_device))))
		flags |= DRIVER_SUBMIT_WAIT;
	if (bytes <= DRIVER_COPY_SHORT)
		flags |= DRIVER_SUBMIT_SHORT;
	copy = copy_make(box, sides, staged ? bytes : 0);
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (staged)
		stage(copy);
	return driver_stream_submit(stream, &copy->base, flags, NULL);
}

/* ---- copies of graphs ---- */

/* The copy of a graph: the memory may have been freed since it was prepared. */
struct graph_copy {
	struct driver_operation base;
	struct copy_box box;
	struct copy_sides sides;
};

static bool side_is_still_there(const struct copy_box *box, const struct copy_side *side, bool is_target,
				enum driver_memory_kind kind)
{
	return driver_memory_kind_of(side->address) == kind &&
	       (kind == DRIVER_MEMORY_NONE || !check_memory(box, side, is_target));
}

static CUresult run_graph_copy(struct driver_operation *operation, CUresult state)
{
	const struct graph_copy *copy = (struct graph_copy *)operation;
	struct copy_operation now = {
		.box = copy->box, .to = copy->sides.to, .from = copy->sides.from,
	};

	if (!side_is_still_there(&copy->box, &copy->sides.to, true, copy->sides.to_kind) ||
	    !side_is_still_there(&copy->box, &copy->sides.from, false, copy->sides.from_kind))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	return run_copy(&now.base, state);
}

CUresult driver_copy_prepare(const CUDA_MEMCPY3D *copy, struct driver_operation **operation)
{
	struct graph_copy *graph_copy;
	struct copy_sides sides;
	struct copy_place to, from;
	struct copy_box box;
	CUresult result = driver_copy_read(copy, &box, &to, &from);

	if (!result)
		result = driver_copy_settle(&box, &to, &from, &sides);
	if (result)
		return result;
	if (sides.is_empty)
		return CUDA_ERROR_INVALID_VALUE;
	graph_copy = calloc(1, sizeof *graph_copy);
	if (!graph_copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	graph_copy->base.run = run_graph_copy;
	graph_copy->base.release = release_copy;
	graph_copy->box = box;
	graph_copy->sides = sides;
	*operation = &graph_copy->base;
	return CUDA_SUCCESS;
}
