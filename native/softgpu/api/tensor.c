/* Tensor maps: a description of a tensor in memory and of the boxes that are copied out of
 * it, made by the host alone.  Their rules are those of cuTensorMapEncode* in the driver API. */
#include "../driver/device.h"
#include "../engine/machine/tensor_map.h"

#include <string.h>

#define BOX_MAX 256u
#define PIXELS_MAX 1024u
#define STEP_MAX 8u
#define STRIDE_MAX (UINT64_C(1) << 40)
#define EXTENT_MAX (UINT64_C(1) << 32)

static const uint8_t types[] = {
	[CU_TENSOR_MAP_DATA_TYPE_UINT8] = TENSOR_U8,
	[CU_TENSOR_MAP_DATA_TYPE_UINT16] = TENSOR_U16,
	[CU_TENSOR_MAP_DATA_TYPE_UINT32] = TENSOR_U32,
	[CU_TENSOR_MAP_DATA_TYPE_INT32] = TENSOR_S32,
	[CU_TENSOR_MAP_DATA_TYPE_UINT64] = TENSOR_U64,
	[CU_TENSOR_MAP_DATA_TYPE_INT64] = TENSOR_S64,
	[CU_TENSOR_MAP_DATA_TYPE_FLOAT16] = TENSOR_F16,
	[CU_TENSOR_MAP_DATA_TYPE_FLOAT32] = TENSOR_F32,
	[CU_TENSOR_MAP_DATA_TYPE_FLOAT64] = TENSOR_F64,
	[CU_TENSOR_MAP_DATA_TYPE_BFLOAT16] = TENSOR_BF16,
	[CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ] = TENSOR_F32_FTZ,
	[CU_TENSOR_MAP_DATA_TYPE_TFLOAT32] = TENSOR_TF32,
	[CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ] = TENSOR_TF32_FTZ,
};

/* What all kinds have.  Strides need not grow from one dimension to the next, nor hold what is
 * before them: libraries describe transposed and repeated tensors so. */
static CUresult encode(struct tensor_map *map, CUtensorMapDataType type, unsigned rank,
		       const void *address, const cuuint64_t *extents, const cuuint64_t *strides,
		       const cuuint32_t *steps, CUtensorMapInterleave interleave)
{
	uint64_t align = interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;

	if (!extents || !steps || !rank || rank > TENSOR_RANK_MAX || (rank > 1 && !strides) ||
	    (unsigned)interleave > CU_TENSOR_MAP_INTERLEAVE_32B || (uintptr_t)address % align ||
	    (interleave && rank < 3))
		return CUDA_ERROR_INVALID_VALUE;
	if ((unsigned)type >= sizeof types)
		return CUDA_ERROR_NOT_SUPPORTED;
	*map = (struct tensor_map){
		.magic = TENSOR_MAP_MAGIC, .address = (uintptr_t)address, .type = types[type],
		.last_dimension = (uint8_t)(rank - 1), .interleave = (uint8_t)interleave,
	};
	for (unsigned k = 0; k < rank; k++) {
		if (!extents[k] || extents[k] > EXTENT_MAX || !steps[k] || steps[k] > STEP_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		map->last[k] = (uint32_t)(extents[k] - 1);
		/* That of dimension 0 counts in interleaved layouts alone. */
		map->skipped[k] = k || interleave ? (uint8_t)(steps[k] - 1) : 0;
		if (k + 1 == rank)
			break;
		if (strides[k] % align || strides[k] >= STRIDE_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		map->strides[k] = strides[k];
	}
	return CUDA_SUCCESS;
}

static CUresult take_swizzle(struct tensor_map *map, CUtensorMapSwizzle swizzle)
{
	static const struct {
		uint8_t swizzle, atom;
	} modes[] = {
		[CU_TENSOR_MAP_SWIZZLE_NONE] = { TENSOR_SWIZZLE_NONE, TENSOR_ATOM_16 },
		[CU_TENSOR_MAP_SWIZZLE_32B] = { TENSOR_SWIZZLE_32, TENSOR_ATOM_16 },
		[CU_TENSOR_MAP_SWIZZLE_64B] = { TENSOR_SWIZZLE_64, TENSOR_ATOM_16 },
		[CU_TENSOR_MAP_SWIZZLE_128B] = { TENSOR_SWIZZLE_128, TENSOR_ATOM_16 },
		[CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B] = { TENSOR_SWIZZLE_128, TENSOR_ATOM_32 },
		[CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B] = { TENSOR_SWIZZLE_128,
								   TENSOR_ATOM_32_FLIP_8 },
		[CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B] = { TENSOR_SWIZZLE_128, TENSOR_ATOM_64 },
	};

	if ((unsigned)swizzle >= sizeof modes / sizeof *modes)
		return CUDA_ERROR_INVALID_VALUE;
	map->swizzle = modes[swizzle].swizzle;
	map->atom = modes[swizzle].atom;
	return CUDA_SUCCESS;
}

/* `inner`: elements of dimension 0 that a copy takes. */
static CUresult finish(CUtensorMap *out, struct tensor_map *map, unsigned inner,
		       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
		       CUtensorMapFloatOOBfill fill)
{
	uint32_t row = inner * tensor_element_bytes[map->type];

	/* The type is aligned, but NVIDIA's driver takes it anywhere (its own cuda.core has it in objects of
	 * Python's): the bytes are copied as such. */
	if (!out || take_swizzle(map, swizzle) ||
	    (unsigned)promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B ||
	    (unsigned)fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
		return CUDA_ERROR_INVALID_VALUE;
	/* What is no number has no such value to fill with. */
	if (fill && map->type < TENSOR_F16)
		return CUDA_ERROR_INVALID_VALUE;
	if (map->interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
	    (row % 16 || (map->swizzle && row > tensor_swizzle_span(map))))
		return CUDA_ERROR_INVALID_VALUE;
	if (map->interleave == CU_TENSOR_MAP_INTERLEAVE_32B && swizzle != CU_TENSOR_MAP_SWIZZLE_32B)
		return CUDA_ERROR_INVALID_VALUE;
	map->fills_nan = fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
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
	DRIVER_CALL;
	struct tensor_map map;
	CUresult result = encode(&map, type, rank, address, extents, strides, steps, interleave);

	if (result)
		return result;
	if (!box)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned k = 0; k < rank; k++) {
		if (!box[k] || box[k] > BOX_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		map.last_in_box[k] = (uint8_t)(box[k] - 1);
	}
	map.kind = TENSOR_TILED;
	return finish(out, &map, box[0], swizzle, promotion, fill);
}

/* Corners are told from the innermost dimension outwards, as all else is: width, height, depth. */
static CUresult take_corner(struct tensor_map *map, unsigned k, int lower, int upper, int limit)
{
	if (lower < -limit || lower >= limit || upper < -limit || upper >= limit ||
	    (int64_t)map->last[k + 1] + upper < lower)
		return CUDA_ERROR_INVALID_VALUE;
	map->lower[k] = (int16_t)lower;
	map->upper[k] = (int16_t)upper;
	return CUDA_SUCCESS;
}

static CUresult take_pixels(struct tensor_map *map, cuuint32_t channels, cuuint32_t pixels)
{
	if (!channels || channels > BOX_MAX || !pixels || pixels > PIXELS_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	map->channels = (uint16_t)channels;
	map->pixels = (uint16_t)pixels;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuTensorMapEncodeIm2col(
	CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address,
	const cuuint64_t *extents, const cuuint64_t *strides, const int *lower, const int *upper,
	cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
	CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
	CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
	DRIVER_CALL;
	static const int limits[] = { [3] = 1 << 15, [4] = 1 << 7, [5] = 1 << 4 };
	struct tensor_map map;
	CUresult result = encode(&map, type, rank, address, extents, strides, steps, interleave);

	if (result)
		return result;
	if (rank < 3 || !lower || !upper || take_pixels(&map, channels, pixels))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned k = 0; k + 2 < rank; k++)
		if (take_corner(&map, k, lower[k], upper[k], limits[rank]))
			return CUDA_ERROR_INVALID_VALUE;
	map.kind = TENSOR_IM2COL;
	return finish(out, &map, channels, swizzle, promotion, fill);
}

DRIVER_EXPORT CUresult cuTensorMapEncodeIm2colWide(
	CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address,
	const cuuint64_t *extents, const cuuint64_t *strides, int lower, int upper,
	cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
	CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
	CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
	DRIVER_CALL;
	struct tensor_map map;
	CUresult result = encode(&map, type, rank, address, extents, strides, steps, interleave);

	if (result)
		return result;
	/* W128 takes 128 pixels, whatever `pixels` is. */
	if (mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128)
		pixels = 128;
	if (rank < 3 || take_pixels(&map, channels, pixels) ||
	    take_corner(&map, 0, lower, upper, 1 << 15) ||
	    (unsigned)mode > CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128 ||
	    (swizzle != CU_TENSOR_MAP_SWIZZLE_64B && swizzle != CU_TENSOR_MAP_SWIZZLE_128B &&
	     swizzle != CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B))
		return CUDA_ERROR_INVALID_VALUE;
	map.wide_mode = (uint8_t)mode;
	map.kind = TENSOR_IM2COL_WIDE;
	return finish(out, &map, channels, swizzle, promotion, fill);
}

DRIVER_EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap *out, void *address)
{
	DRIVER_CALL;
	struct tensor_map map;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&map, out, sizeof map);
	if (map.magic != TENSOR_MAP_MAGIC ||
	    (uintptr_t)address % (map.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16))
		return CUDA_ERROR_INVALID_VALUE;
	map.address = (uintptr_t)address;
	memcpy(out, &map, sizeof map);
	return CUDA_SUCCESS;
}
