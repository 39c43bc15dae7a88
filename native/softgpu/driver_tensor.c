/* Tensor maps: a description of a tensor in memory and of the boxes that are copied out of
 * it, made by the host alone.  The layout is this driver's own: cuda.h calls it opaque. */
#include "driver_device.h"

#include <string.h>

#define RANK_MAX 5u
#define BOX_MAX 256u
#define STRIDE_MAX (UINT64_C(1) << 40)
#define EXTENT_MAX (UINT64_C(1) << 32)

struct tensor_map {
	uint64_t address;
	uint32_t extents[RANK_MAX];	/* less one */
	uint32_t strides[RANK_MAX - 1];	/* in 16 bytes */
	uint8_t boxes[RANK_MAX];	/* less one */
	uint8_t steps[RANK_MAX];
	int8_t lower[3], upper[3];
	uint8_t kind, rank, type, interleave, swizzle, promotion, fill, mode;
	uint16_t channels, pixels;
};

_Static_assert(sizeof(struct tensor_map) <= sizeof(CUtensorMap), "it has room for 128 bytes");

static const uint8_t element_bytes[] = { 1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4 };

enum { TILED = 1, IM2COL, IM2COL_WIDE };

/* What all kinds have; the limits are those of cuTensorMapEncodeTiled in the driver API. */
static CUresult encode(struct tensor_map *map, CUtensorMapDataType type, unsigned rank,
		       const void *address, const cuuint64_t *extents, const cuuint64_t *strides,
		       const cuuint32_t *steps, CUtensorMapInterleave interleave)
{
	uint64_t align = interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;

	if (!extents || !steps || !rank || rank > RANK_MAX || (rank > 1 && !strides) ||
	    (unsigned)interleave > CU_TENSOR_MAP_INTERLEAVE_32B || (uintptr_t)address % align ||
	    (interleave && rank < 3))
		return CUDA_ERROR_INVALID_VALUE;
	if ((unsigned)type >= sizeof element_bytes)
		return CUDA_ERROR_NOT_SUPPORTED;
	*map = (struct tensor_map){
		.address = (uintptr_t)address, .rank = (uint8_t)rank, .type = (uint8_t)type,
		.interleave = (uint8_t)interleave,
	};
	for (unsigned k = 0; k < rank; k++) {
		if (!extents[k] || extents[k] > EXTENT_MAX || !steps[k] || steps[k] > 8)
			return CUDA_ERROR_INVALID_VALUE;
		map->extents[k] = (uint32_t)(extents[k] - 1);
		map->steps[k] = (uint8_t)steps[k];
		if (k + 1 == rank)
			break;
		if (strides[k] % align || strides[k] >= STRIDE_MAX ||
		    strides[k] < (k ? strides[k - 1] : extents[0] * element_bytes[type]))
			return CUDA_ERROR_INVALID_VALUE;
		map->strides[k] = (uint32_t)(strides[k] / 16);
	}
	return CUDA_SUCCESS;
}

static CUresult finish(CUtensorMap *out, struct tensor_map *map, CUtensorMapSwizzle swizzle,
		       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
	if (!out || (unsigned)swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B ||
	    (unsigned)promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B ||
	    (unsigned)fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
		return CUDA_ERROR_INVALID_VALUE;
	/* What is no number has no such value to fill with. */
	if (fill && map->type < CU_TENSOR_MAP_DATA_TYPE_FLOAT16)
		return CUDA_ERROR_INVALID_VALUE;
	map->swizzle = (uint8_t)swizzle;
	map->promotion = (uint8_t)promotion;
	map->fill = (uint8_t)fill;
	memset(out, 0, sizeof *out);
	memcpy(out, map, sizeof *map);
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuTensorMapEncodeTiled(
	CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address,
	const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
	const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
	CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
	struct tensor_map map;
	CUresult result = encode(&map, type, rank, address, extents, strides, steps, interleave);

	if (result)
		return result;
	if (!box)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned k = 0; k < rank; k++) {
		if (!box[k] || box[k] > BOX_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		map.boxes[k] = (uint8_t)(box[k] - 1);
	}
	if (!interleave && box[0] * element_bytes[type] % 16)
		return CUDA_ERROR_INVALID_VALUE;
	map.kind = TILED;
	return finish(out, &map, swizzle, promotion, fill);
}

DRIVER_EXPORT CUresult cuTensorMapEncodeIm2col(
	CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address,
	const cuuint64_t *extents, const cuuint64_t *strides, const int *lower, const int *upper,
	cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
	CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
	CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
	struct tensor_map map;
	CUresult result = encode(&map, type, rank, address, extents, strides, steps, interleave);

	if (result)
		return result;
	if (rank < 3 || !lower || !upper || channels > BOX_MAX || pixels > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned k = 0; k + 2 < rank; k++) {
		if (lower[k] < INT8_MIN || lower[k] > INT8_MAX || upper[k] < INT8_MIN ||
		    upper[k] > INT8_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		map.lower[k] = (int8_t)lower[k];
		map.upper[k] = (int8_t)upper[k];
	}
	map.channels = (uint16_t)channels;
	map.pixels = (uint16_t)pixels;
	map.kind = IM2COL;
	return finish(out, &map, swizzle, promotion, fill);
}

DRIVER_EXPORT CUresult cuTensorMapEncodeIm2colWide(
	CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address,
	const cuuint64_t *extents, const cuuint64_t *strides, int lower, int upper,
	cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
	CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
	CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
	struct tensor_map map;
	CUresult result = encode(&map, type, rank, address, extents, strides, steps, interleave);

	if (result)
		return result;
	if (rank < 3 || channels > BOX_MAX || pixels > 1024 || lower < INT8_MIN ||
	    lower > INT8_MAX || upper < INT8_MIN || upper > INT8_MAX ||
	    (unsigned)mode > CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128)
		return CUDA_ERROR_INVALID_VALUE;
	map.lower[0] = (int8_t)lower;
	map.upper[0] = (int8_t)upper;
	map.channels = (uint16_t)channels;
	map.pixels = (uint16_t)pixels;
	map.mode = (uint8_t)mode;
	map.kind = IM2COL_WIDE;
	return finish(out, &map, swizzle, promotion, fill);
}

DRIVER_EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap *out, void *address)
{
	struct tensor_map map;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&map, out, sizeof map);
	if (map.kind < TILED || map.kind > IM2COL_WIDE ||
	    (uintptr_t)address % (map.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16))
		return CUDA_ERROR_INVALID_VALUE;
	map.address = (uintptr_t)address;
	memcpy(out, &map, sizeof map);
	return CUDA_SUCCESS;
}
