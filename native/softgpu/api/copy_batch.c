/* Batches of copies: the same as the copies one by one.  CUDA leaves the order within a batch open, and what a
 * batch says of its sources and of where memory is are hints, which have nothing to act on here. */
#include "../driver/array.h"
#include "../driver/stream.h"

#include <stdint.h>

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream);

/* Batches go to no stream without a name but the thread's. */
static CUresult enter(CUstream handle, size_t count, size_t *failed)
{
	struct CUstream_st *stream;
	CUresult result = driver_stream_of(handle, &stream);

	if (failed)
		*failed = SIZE_MAX;
	if (result)
		return result;
	return count && handle && handle != CU_STREAM_LEGACY ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool is_order(CUmemcpySrcAccessOrder order)
{
	return order > CU_MEMCPY_SRC_ACCESS_ORDER_INVALID && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

/* Attributes are for the copies from an index on, up to that of the next. */
static bool are_attributes(const CUmemcpyAttributes *attributes, const size_t *indices, size_t attribute_count,
			   size_t count)
{
	if (!attributes || !indices || !attribute_count || attribute_count > count || indices[0])
		return false;
	for (size_t k = 0; k < attribute_count; k++) {
		if (k && (indices[k] <= indices[k - 1] || indices[k] >= count))
			return false;
		if (!is_order(attributes[k].srcAccessOrder))
			return false;
	}
	return true;
}

DRIVER_EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
					  CUmemcpyAttributes *attributes, size_t *indices,
					  size_t attribute_count, size_t *failed, CUstream stream)
{
	DRIVER_CALL;
	CUresult result = enter(stream, count, failed);

	if (!result && (!to || !from || !sizes || !are_attributes(attributes, indices, attribute_count, count)))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result)
		return result;
	for (size_t k = 0; k < count && !result; k++) {
		result = to[k] && from[k] && sizes[k] ? cuMemcpyAsync(to[k], from[k], sizes[k], stream) :
							CUDA_ERROR_INVALID_VALUE;
		if (result && failed)
			*failed = k;
	}
	return result;
}

DRIVER_EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
					     CUmemcpyAttributes *attributes, size_t *indices,
					     size_t attribute_count, CUstream stream)
{
	return cuMemcpyBatchAsync(to, from, sizes, count, attributes, indices, attribute_count, NULL, stream);
}

/* ---- boxes ---- */

/* Lengths are in texels where an array takes part, in bytes where none does. */
static CUresult texel_of(const CUmemcpy3DOperand *operand, size_t *bytes)
{
	struct CUarray_st *array;
	CUresult result;

	if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER)
		return CUDA_SUCCESS;
	if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_array_of_texels(operand->op.array.array, &array);
	if (!result)
		*bytes = array->texel_bytes;
	return result;
}

struct place {
	CUmemorytype type;
	CUdeviceptr device;
	CUarray array;
	size_t x, y, z, pitch, height;
};

/* Without a length rows lie side by side, and so do layers. */
static struct place place_of(const CUmemcpy3DOperand *operand, const CUextent3D *extent, size_t texel)
{
	const CUoffset3D *offset = &operand->op.array.offset;
	size_t row = operand->op.ptr.rowLength, layer = operand->op.ptr.layerHeight;

	if (operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
		return (struct place){ .type = CU_MEMORYTYPE_ARRAY, .array = operand->op.array.array,
				       .x = offset->x * texel, .y = offset->y, .z = offset->z };
	return (struct place){ .type = CU_MEMORYTYPE_UNIFIED, .device = operand->op.ptr.ptr,
			       .pitch = (row ? row : extent->width) * texel,
			       .height = layer ? layer : extent->height };
}

static CUresult copy_box(const CUDA_MEMCPY3D_BATCH_OP *op, CUstream stream)
{
	size_t texel = 1;
	CUresult result = texel_of(&op->dst, &texel);
	struct place to, from;
	CUDA_MEMCPY3D copy;

	if (!result)
		result = texel_of(&op->src, &texel);
	if (result)
		return result;
	to = place_of(&op->dst, &op->extent, texel);
	from = place_of(&op->src, &op->extent, texel);
	copy = (CUDA_MEMCPY3D){
		.srcXInBytes = from.x, .srcY = from.y, .srcZ = from.z, .srcMemoryType = from.type,
		.srcDevice = from.device, .srcArray = from.array, .srcPitch = from.pitch, .srcHeight = from.height,
		.dstXInBytes = to.x, .dstY = to.y, .dstZ = to.z, .dstMemoryType = to.type,
		.dstDevice = to.device, .dstArray = to.array, .dstPitch = to.pitch, .dstHeight = to.height,
		.WidthInBytes = op->extent.width * texel, .Height = op->extent.height, .Depth = op->extent.depth,
	};
	return cuMemcpy3DAsync_v2(&copy, stream);
}

DRIVER_EXPORT CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed,
					    unsigned long long flags, CUstream stream)
{
	DRIVER_CALL;
	CUresult result = enter(stream, count, failed);

	if (!result && (!operations || flags))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result)
		return result;
	for (size_t k = 0; k < count && !result; k++) {
		result = copy_box(&operations[k], stream);
		if (result && failed)
			*failed = k;
	}
	return result;
}

DRIVER_EXPORT CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations,
					       unsigned long long flags, CUstream stream)
{
	return cuMemcpy3DBatchAsync(count, operations, NULL, flags, stream);
}
