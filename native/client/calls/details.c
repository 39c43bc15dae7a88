/* What a line of the trace says of a call, which has returned: from its arguments and the shim's own tables. */
#include "../addresses/ranges.h"
#include "../ground/trace.h"
#include "../libraries/kernel.h"
#include "../libraries/library.h"
#include "array.h"
#include "details.h"

#include <string.h>

void client_trace_bytes(struct client_trace_call *call, uint64_t width, uint64_t height, uint64_t depth)
{
	call->sized = !__builtin_mul_overflow(width, height, &call->bytes) &&
		      !__builtin_mul_overflow(call->bytes, depth, &call->bytes);
}

static const char *place_of(uint64_t at)
{
	struct client_range range;

	if (at == CLIENT_TRACE_ARRAY)
		return "array";
	if (!client_memory_find(at, &range))
		return "pageable";
	if (range.mapped || range.kind == MEMORY_PINNED)
		return "pinned";
	return range.managed ? "managed" : "device";
}

/* Where a call fails, its addresses may be anything, and the shim not be there. */
void client_trace_copy(struct client_trace_call *call, uint64_t to, uint64_t from)
{
	if (call->result != CUDA_SUCCESS)
		return;
	call->to = place_of(to);
	call->from = place_of(from);
}

/* One of several copies that are one call. */
static void add_copy(struct client_trace_call *call, uint64_t to, uint64_t from, uint64_t bytes)
{
	const char *to_place = place_of(to), *from_place = place_of(from);

	call->to = !call->to || call->to == to_place ? to_place : "mixed";
	call->from = !call->from || call->from == from_place ? from_place : "mixed";
	call->bytes += bytes;
}

void client_trace_batch(struct client_trace_call *call, const CUdeviceptr *to, const CUdeviceptr *from,
			const size_t *sizes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		add_copy(call, to[i], from[i], sizes[i]);
	call->sized = true;
}

void client_trace_part(uint64_t to, uint64_t from, uint64_t width, uint64_t height, uint64_t depth)
{
	add_copy(client_trace_told(), to, from, width * height * depth);
}

void client_trace_parts(struct client_trace_call *call)
{
	const struct client_trace_call *parts = client_trace_told();

	call->to = parts->to;
	call->from = parts->from;
	call->bytes = parts->bytes;
	call->sized = true;
}

void client_trace_array(struct client_trace_call *call, const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
	const unsigned elsewhere = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
	bool layers = array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	unsigned texel = client_texel_bytes(array->Format, array->NumChannels);
	uint64_t width = array->Width, height = array->Height, depth = array->Depth;

	/* Memory that is mapped to it is told where that is made. */
	call->sized = texel && !(array->Flags & elsewhere);
	for (unsigned level = 0; level < levels && call->sized; level++) {
		call->bytes += texel * width * (height ? height : 1) * (depth ? depth : 1);
		width = width > 1 ? width / 2 : 1;
		height = height > 1 ? height / 2 : height;
		if (!layers)
			depth = depth > 1 ? depth / 2 : depth;
	}
}

/* A kernel's name is here since its library was loaded. */
void client_trace_kernel(struct client_trace_call *call, CUfunction handle)
{
	const struct client_function *function;

	if (client_function_get(handle, (struct client_function **)&function) == CUDA_SUCCESS)
		call->kernel = function->name;
}

void client_trace_shape(struct client_trace_call *call, unsigned grid_x, unsigned grid_y, unsigned grid_z,
			unsigned block_x, unsigned block_y, unsigned block_z)
{
	const unsigned shape[] = { grid_x, grid_y, grid_z, block_x, block_y, block_z };

	memcpy(call->grid, shape, sizeof(call->grid));
	memcpy(call->block, shape + 3, sizeof(call->block));
	call->shaped = true;
}

void client_trace_image(struct client_trace_call *call, const void *loaded)
{
	client_trace_bytes(call, client_library_bytes(loaded), 1, 1);
}
