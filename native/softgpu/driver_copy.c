#include "driver_array.h"
#include "driver_capture.h"
#include "driver_graph.h"
#include "driver_memory.h"
#include "driver_stream.h"
#include "driver_virtual.h"

#include <stdlib.h>
#include <string.h>

/* Copies of at most this many bytes run in the caller when their turn is now:
 * waking a worker, and whoever waits for it, takes as long (some 100 us). */
#define SHORT_MAX (1ul << 20)
/* Pageable memory is copied aside for an asynchronous copy up to this size; a
 * larger copy waits for its turn instead, as CUDA's staging buffers do. */
#define STAGE_MAX (1ul << 20)

/* A box of bytes: `width` bytes in each of `height` rows in each of `depth`
 * slices. */
struct box {
	size_t width, height, depth;
};

struct side {
	uintptr_t address;		/* of the first byte */
	size_t pitch;			/* bytes from row to row */
	size_t slice;			/* bytes from slice to slice */
};

struct copy_operation {
	struct driver_operation base;
	struct box box;
	struct side from, to;
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

/* Bytes from the first to behind the last; SIZE_MAX if that can't be. */
static size_t span_of(const struct box *box, const struct side *side)
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
static CUresult check_memory(const struct box *box, const struct side *side, bool is_target)
{
	size_t span = span_of(box, side);

	return is_target ? driver_memory_check_target(side->address, span)
			 : driver_memory_check(side->address, span);
}

/* One side of a copy: is it where it was said to be, and all of it memory? */
static CUresult check_side(const struct box *box, const struct side *side, bool is_target,
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

#define HOST CU_MEMORYTYPE_HOST
#define DEVICE CU_MEMORYTYPE_DEVICE
#define UNIFIED CU_MEMORYTYPE_UNIFIED

/* What one side of a 2D or 3D copy says; 2D is 3D with one slice. */
struct place {
	CUmemorytype type;
	const void *host;
	CUdeviceptr device;
	CUarray array;
	size_t x, y, z;		/* bytes, rows, slices */
	size_t pitch, height;
};

/* An array has its own pitch, and ends where it ends. */
static CUresult side_of_array(struct side *side, const struct place *place, const struct box *box)
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
	*side = (struct side){
		.address = array->memory + place->z * array->slice + place->y * array->pitch + place->x,
		.pitch = array->pitch,
		.slice = array->slice,
	};
	return CUDA_SUCCESS;
}

static CUresult side_of(struct side *side, const struct place *place, const struct box *box)
{
	CUmemorytype type = place->type;
	size_t least, pitch = place->pitch, height = place->height;

	if (type == CU_MEMORYTYPE_ARRAY)
		return side_of_array(side, place, box);
	if (type != HOST && type != DEVICE && type != UNIFIED)
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
	side->address = (type == HOST ? (uintptr_t)place->host : (uintptr_t)place->device) +
			place->z * side->slice + place->y * pitch + place->x;
	return CUDA_SUCCESS;
}

/* The same as the API says it. */
static void describe(const struct box *box, const struct place *to, const struct place *from,
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

/* Arrays are memory of a device. */
static CUmemorytype type_of(const struct place *place)
{
	return place->type == CU_MEMORYTYPE_ARRAY ? CU_MEMORYTYPE_DEVICE : place->type;
}

/* Copies between what two places say. */
struct copy_sides {
	struct side to, from;
	enum driver_memory_kind to_kind, from_kind;
	bool is_empty;
};

static CUresult settle_sides(const struct box *box, const struct place *to, const struct place *from,
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

static struct copy_operation *copy_make(const struct box *box, const struct copy_sides *sides,
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
static CUresult copy_submit(struct CUstream_st *stream, const struct box *box,
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
	if (bytes <= SHORT_MAX)
		flags |= DRIVER_SUBMIT_SHORT;
	copy = copy_make(box, sides, staged ? bytes : 0);
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (staged)
		stage(copy);
	return driver_stream_submit(stream, &copy->base, flags, NULL);
}

static CUresult copy_places(CUstream handle, const struct box *box, const struct place *to,
			    const struct place *from, bool async)
{
	struct copy_sides sides;
	struct CUstream_st *stream;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (!result && !async)
		result = capturing ? driver_capture_refuse(stream) : driver_capture_unsafe();
	if (!result)
		result = settle_sides(box, to, from, &sides);
	if (result || sides.is_empty)
		return result;
	if (capturing) {
		CUDA_MEMCPY3D copy;

		describe(box, to, from, &copy);
		return driver_capture_copy(stream, &copy);
	}
	return copy_submit(stream, box, &sides, async);
}

static struct place in_array(CUarray array, size_t offset)
{
	return (struct place){ .type = CU_MEMORYTYPE_ARRAY, .array = array, .x = offset };
}

static struct place in_memory(CUmemorytype type, uintptr_t address)
{
	return (struct place){ .type = type, .host = (const void *)address, .device = address };
}

static CUresult copy_row(CUstream stream, struct place to, struct place from, size_t bytes, bool async)
{
	struct box box = { bytes, 1, 1 };

	return copy_places(stream, &box, &to, &from, async);
}

static CUresult copy_line(CUstream stream, uintptr_t to, CUmemorytype to_type, uintptr_t from,
			  CUmemorytype from_type, size_t bytes, bool async)
{
	return copy_row(stream, in_memory(to_type, to), in_memory(from_type, from), bytes, async);
}

/* ---- one dimension ---- */

DRIVER_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy_line(NULL, to, UNIFIED, from, UNIFIED, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy_line(CU_STREAM_PER_THREAD, to, UNIFIED, from, UNIFIED, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
				     CUstream stream)
{
	return copy_line(stream, to, UNIFIED, from, UNIFIED, bytes, true);
}

DRIVER_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	return copy_line(NULL, to, DEVICE, (uintptr_t)from, HOST, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes)
{
	return copy_line(CU_STREAM_PER_THREAD, to, DEVICE, (uintptr_t)from, HOST, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
					    CUstream stream)
{
	return copy_line(stream, to, DEVICE, (uintptr_t)from, HOST, bytes, true);
}

DRIVER_EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	return copy_line(NULL, (uintptr_t)to, HOST, from, DEVICE, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes)
{
	return copy_line(CU_STREAM_PER_THREAD, (uintptr_t)to, HOST, from, DEVICE, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes,
					    CUstream stream)
{
	return copy_line(stream, (uintptr_t)to, HOST, from, DEVICE, bytes, true);
}

DRIVER_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy_line(NULL, to, DEVICE, from, DEVICE, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy_line(CU_STREAM_PER_THREAD, to, DEVICE, from, DEVICE, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
					    CUstream stream)
{
	return copy_line(stream, to, DEVICE, from, DEVICE, bytes, true);
}

DRIVER_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
				    CUcontext from_context, size_t bytes)
{
	(void)to_context, (void)from_context;	/* the addresses say it */
	return copy_line(NULL, to, DEVICE, from, DEVICE, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
					 CUcontext from_context, size_t bytes)
{
	(void)to_context, (void)from_context;
	return copy_line(CU_STREAM_PER_THREAD, to, DEVICE, from, DEVICE, bytes, false);
}

DRIVER_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
					 CUcontext from_context, size_t bytes, CUstream stream)
{
	(void)to_context, (void)from_context;
	return copy_line(stream, to, DEVICE, from, DEVICE, bytes, true);
}

/* ---- two and three dimensions ---- */

/* The copy of a graph: the memory may have been freed since it was prepared. */
struct graph_copy {
	struct driver_operation base;
	struct box box;
	struct copy_sides sides;
};

static bool side_is_still_there(const struct box *box, const struct side *side, bool is_target,
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

static CUresult copy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool async)
{
	struct place to, from;
	struct box box;

	if (!copy)
		return CUDA_ERROR_INVALID_VALUE;
	box = (struct box){ copy->WidthInBytes, copy->Height, 1 };
	from = (struct place){ copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray,
			       copy->srcXInBytes, copy->srcY, 0, copy->srcPitch, 0 };
	to = (struct place){ copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray,
			     copy->dstXInBytes, copy->dstY, 0, copy->dstPitch, 0 };
	return copy_places(stream, &box, &to, &from, async);
}

/* What a 3D copy says. */
static CUresult read_copy(const CUDA_MEMCPY3D *copy, struct box *box, struct place *to,
			  struct place *from)
{
	if (!copy || copy->srcLOD || copy->dstLOD)
		return CUDA_ERROR_INVALID_VALUE;
	*box = (struct box){ copy->WidthInBytes, copy->Height, copy->Depth };
	*from = (struct place){ copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray,
				copy->srcXInBytes, copy->srcY, copy->srcZ, copy->srcPitch,
				copy->srcHeight };
	*to = (struct place){ copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray,
			      copy->dstXInBytes, copy->dstY, copy->dstZ, copy->dstPitch,
			      copy->dstHeight };
	return CUDA_SUCCESS;
}

static CUresult copy_3d(const CUDA_MEMCPY3D *copy, CUstream stream, bool async)
{
	struct place to, from;
	struct box box;
	CUresult result = read_copy(copy, &box, &to, &from);

	return result ? result : copy_places(stream, &box, &to, &from, async);
}

CUresult driver_copy_prepare(const CUDA_MEMCPY3D *copy, struct driver_operation **operation)
{
	struct graph_copy *graph_copy;
	struct copy_sides sides;
	struct place to, from;
	struct box box;
	CUresult result = read_copy(copy, &box, &to, &from);

	if (!result)
		result = settle_sides(&box, &to, &from, &sides);
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

/* ---- one dimension of an array ---- */

/* The forms of each direction: legacy and per-thread default stream. */
#define DEFINE_ARRAY_COPY(name, parameters, to, from)						\
DRIVER_EXPORT CUresult name##_v2 parameters							\
{												\
	return copy_row(NULL, to, from, bytes, false);						\
}												\
DRIVER_EXPORT CUresult name##_v2_ptds parameters						\
{												\
	return copy_row(CU_STREAM_PER_THREAD, to, from, bytes, false);				\
}

DEFINE_ARRAY_COPY(cuMemcpyAtoA, (CUarray to, size_t at, CUarray from, size_t offset, size_t bytes),
		  in_array(to, at), in_array(from, offset))
DEFINE_ARRAY_COPY(cuMemcpyAtoD, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
		  in_memory(DEVICE, to), in_array(from, offset))
DEFINE_ARRAY_COPY(cuMemcpyDtoA, (CUarray to, size_t at, CUdeviceptr from, size_t bytes),
		  in_array(to, at), in_memory(DEVICE, from))
DEFINE_ARRAY_COPY(cuMemcpyAtoH, (void *to, CUarray from, size_t offset, size_t bytes),
		  in_memory(HOST, (uintptr_t)to), in_array(from, offset))
DEFINE_ARRAY_COPY(cuMemcpyHtoA, (CUarray to, size_t at, const void *from, size_t bytes),
		  in_array(to, at), in_memory(HOST, (uintptr_t)from))

DRIVER_EXPORT CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t bytes,
					    CUstream stream)
{
	return copy_row(stream, in_memory(HOST, (uintptr_t)to), in_array(from, offset), bytes, true);
}

DRIVER_EXPORT CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t at, const void *from, size_t bytes,
					    CUstream stream)
{
	return copy_row(stream, in_array(to, at), in_memory(HOST, (uintptr_t)from), bytes, true);
}

/* ---- boxes ---- */

DRIVER_EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
	return copy_2d(copy, NULL, false);
}

DRIVER_EXPORT CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *copy)
{
	return copy_2d(copy, CU_STREAM_PER_THREAD, false);
}

DRIVER_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
	return copy_2d(copy, NULL, false);
}

DRIVER_EXPORT CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *copy)
{
	return copy_2d(copy, CU_STREAM_PER_THREAD, false);
}

DRIVER_EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	return copy_2d(copy, stream, true);
}

DRIVER_EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy)
{
	return copy_3d(copy, NULL, false);
}

DRIVER_EXPORT CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *copy)
{
	return copy_3d(copy, CU_STREAM_PER_THREAD, false);
}

DRIVER_EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream)
{
	return copy_3d(copy, stream, true);
}

/* ---- memset ---- */

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

/* Is all that a fill says memory of a device? */
static CUresult fill_check(const CUDA_MEMSET_NODE_PARAMS *params)
{
	struct side side = { params->dst, params->pitch, 0 };
	struct box box = { 0, params->height, 1 };

	if (__builtin_mul_overflow(params->width, (size_t)params->elementSize, &box.width) ||
	    params->dst % params->elementSize ||
	    (params->height > 1 && (params->pitch < box.width || params->pitch % params->elementSize)))
		return CUDA_ERROR_INVALID_VALUE;
	return driver_memory_check_target(params->dst, span_of(&box, &side));
}

static struct fill_operation *fill_make(const CUDA_MEMSET_NODE_PARAMS *params)
{
	struct fill_operation *operation = calloc(1, sizeof *operation);

	if (!operation)
		return NULL;
	operation->base.run = run_fill;
	operation->base.release = release_copy;
	operation->to = params->dst;
	operation->pitch = params->pitch;
	operation->width = params->width;
	operation->height = params->height;
	operation->element = params->elementSize;
	operation->value = params->value;
	return operation;
}

/* Asynchronous also without Async in the name, except for pinned memory, which
 * the program could look at next. */
static CUresult fill(CUstream handle, CUdeviceptr to, size_t pitch, unsigned element,
		     uint32_t value, size_t width, size_t height, bool async)
{
	const CUDA_MEMSET_NODE_PARAMS params = { to, pitch, value, element, width, height };
	struct fill_operation *operation;
	struct CUstream_st *stream;
	bool capturing;
	unsigned flags = 0;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (!result && capturing && !async)
		result = driver_capture_refuse(stream);
	if (result)
		return result;
	if (!width || !height)
		return CUDA_SUCCESS;
	result = fill_check(&params);
	if (result)
		return result;
	if (capturing)
		return driver_capture_fill(stream, &params);
	if (!async && !driver_memory_is_on_device(driver_memory_kind_of(to)))
		flags |= DRIVER_SUBMIT_WAIT;
	if (width * element <= SHORT_MAX / height)
		flags |= DRIVER_SUBMIT_SHORT;
	operation = fill_make(&params);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return driver_stream_submit(stream, &operation->base, flags, NULL);
}

/* The fill of a graph: the memory may have been freed since it was prepared. */
static CUresult run_graph_fill(struct driver_operation *operation, CUresult state)
{
	const struct fill_operation *fill = (struct fill_operation *)operation;
	const CUDA_MEMSET_NODE_PARAMS params = {
		fill->to, fill->pitch, fill->value, fill->element, fill->width, fill->height,
	};

	return fill_check(&params) ? CUDA_ERROR_ILLEGAL_ADDRESS : run_fill(operation, state);
}

CUresult driver_fill_prepare(const CUDA_MEMSET_NODE_PARAMS *params,
			     struct driver_operation **out)
{
	struct fill_operation *operation;
	CUresult result;

	if (!params->width || !params->height ||
	    (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4))
		return CUDA_ERROR_INVALID_VALUE;
	result = fill_check(params);
	if (result)
		return result;
	operation = fill_make(params);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->base.run = run_graph_fill;
	*out = &operation->base;
	return CUDA_SUCCESS;
}

/* The four forms of each width: legacy and per-thread default stream, in the
 * order the API has them. */
#define DEFINE_FILL(bits, type)									\
DRIVER_EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)		\
{												\
	return fill(NULL, to, 0, (bits) / 8, value, count, 1, false);				\
}												\
DRIVER_EXPORT CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr to, type value, size_t count)	\
{												\
	return fill(CU_STREAM_PER_THREAD, to, 0, (bits) / 8, value, count, 1, false);		\
}												\
DRIVER_EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count,	\
					      CUstream stream)					\
{												\
	return fill(stream, to, 0, (bits) / 8, value, count, 1, true);				\
}												\
DRIVER_EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value,	\
					      size_t width, size_t height)			\
{												\
	return fill(NULL, to, pitch, (bits) / 8, value, width, height, false);			\
}												\
DRIVER_EXPORT CUresult cuMemsetD2D##bits##_v2_ptds(CUdeviceptr to, size_t pitch, type value,	\
						   size_t width, size_t height)			\
{												\
	return fill(CU_STREAM_PER_THREAD, to, pitch, (bits) / 8, value, width, height, false);	\
}												\
DRIVER_EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value,	\
						size_t width, size_t height, CUstream stream)	\
{												\
	return fill(stream, to, pitch, (bits) / 8, value, width, height, true);		\
}

DEFINE_FILL(8, unsigned char)
DEFINE_FILL(16, unsigned short)
DEFINE_FILL(32, unsigned int)
