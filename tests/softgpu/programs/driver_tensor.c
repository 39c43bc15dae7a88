/* What cuTensorMapEncode* take and what they refuse: each case changes one thing of a description that is right. */
#include "driver.h"

CUresult cuTensorMapEncodeTiled(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
				const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
				CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
CUresult cuTensorMapEncodeIm2col(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
				 const cuuint64_t *, const int *, const int *, cuuint32_t, cuuint32_t,
				 const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
				 CUtensorMapFloatOOBfill);
CUresult cuTensorMapReplaceAddress(CUtensorMap *, void *);

struct description {
	CUtensorMap *map;
	CUtensorMapDataType type;
	cuuint32_t rank;
	uintptr_t address;
	cuuint64_t extents[6], strides[5];
	cuuint32_t box[6], steps[6];
	int lower[3], upper[3];
	cuuint32_t channels, pixels;
	int interleave, swizzle, promotion, fill;
};

static CUtensorMap maps[2];

static const struct description right = {
	.map = maps, .type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16, .rank = 4, .address = 0x700000000000,
	.extents = { 64, 9, 7, 3, 1, 1 }, .strides = { 128, 1152, 8064, 8064, 8064 },
	.box = { 64, 4, 2, 1, 1, 1 }, .steps = { 1, 2, 1, 1, 1, 1 },
	.lower = { -1, -1, -1 }, .upper = { -1, -1, -1 }, .channels = 64, .pixels = 128,
	.swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
};

static CUresult tiled(const struct description *d)
{
	return cuTensorMapEncodeTiled(d->map, d->type, d->rank, (void *)d->address, d->extents, d->strides, d->box,
				      d->steps, d->interleave, d->swizzle, d->promotion, d->fill);
}

static CUresult im2col(const struct description *d)
{
	return cuTensorMapEncodeIm2col(d->map, d->type, d->rank, (void *)d->address, d->extents, d->strides, d->lower,
				       d->upper, d->channels, d->pixels, d->steps, d->interleave, d->swizzle,
				       d->promotion, d->fill);
}

#define WITH(encode, result, change)                                                       \
	do {                                                                               \
		struct description d = right;                                              \
		change;                                                                    \
		EXPECT(encode(&d), result);                                                \
	} while (0)
#define TAKEN(encode, change) WITH(encode, CUDA_SUCCESS, change)
#define REFUSED(encode, change) WITH(encode, CUDA_ERROR_INVALID_VALUE, change)
#define BOTH(verdict, change)          \
	verdict(tiled, change);        \
	verdict(im2col, change)

static void what_both_have(void)
{
	BOTH(TAKEN, );
	BOTH(REFUSED, d.map = NULL);
	BOTH(TAKEN, d.map = (CUtensorMap *)((char *)maps + 16));
	BOTH(REFUSED, d.rank = 0);
	BOTH(REFUSED, d.rank = 6);
	BOTH(REFUSED, d.address += 8);
	BOTH(REFUSED, d.extents[2] = 0);
	BOTH(REFUSED, d.extents[3] = (1ull << 32) + 1);
	BOTH(TAKEN, d.extents[3] = 1ull << 32);
	BOTH(REFUSED, d.strides[1] += 8);
	BOTH(REFUSED, d.strides[2] = 1ull << 40);
	BOTH(TAKEN, d.strides[2] = (1ull << 40) - 16);
	/* Tensors that are transposed, or repeat. */
	BOTH(TAKEN, d.strides[2] = 16);
	BOTH(TAKEN, d.strides[2] = 0);
	BOTH(REFUSED, d.steps[1] = 0);
	BOTH(REFUSED, d.steps[1] = 9);
	BOTH(REFUSED, d.interleave = 3);
	BOTH(REFUSED, d.swizzle = 7);
	BOTH(REFUSED, d.promotion = 4);
	BOTH(REFUSED, d.fill = 2);
	BOTH(TAKEN, d.fill = 1);
	BOTH(REFUSED, d.type = CU_TENSOR_MAP_DATA_TYPE_UINT16; d.fill = 1);
	BOTH(REFUSED, d.swizzle = CU_TENSOR_MAP_SWIZZLE_64B);
	BOTH(TAKEN, d.interleave = CU_TENSOR_MAP_INTERLEAVE_16B);
	BOTH(REFUSED, d.interleave = CU_TENSOR_MAP_INTERLEAVE_32B);
	BOTH(TAKEN, d.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; d.swizzle = CU_TENSOR_MAP_SWIZZLE_32B);
	WITH(tiled, CUDA_ERROR_NOT_SUPPORTED, d.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B);
}

static void boxes(void)
{
	REFUSED(tiled, d.box[1] = 0);
	REFUSED(tiled, d.box[1] = 257);
	TAKEN(tiled, d.box[1] = 256);
	REFUSED(tiled, d.box[0] = 60);
	TAKEN(tiled, d.box[0] = 8);
	REFUSED(tiled, d.rank = 2; d.interleave = CU_TENSOR_MAP_INTERLEAVE_16B);
	TAKEN(tiled, d.rank = 1);
}

static void pixels(void)
{
	REFUSED(im2col, d.rank = 2);
	REFUSED(im2col, d.channels = 257);
	REFUSED(im2col, d.channels = 60);
	REFUSED(im2col, d.pixels = 1025);
	TAKEN(im2col, d.pixels = 1024);
	REFUSED(im2col, d.lower[0] = -129);
	REFUSED(im2col, d.upper[1] = 128);
	TAKEN(im2col, d.rank = 3; d.upper[0] = 32767);
	REFUSED(im2col, d.rank = 5; d.upper[2] = 16);
	/* A box of no pixels. */
	REFUSED(im2col, d.upper[0] = -10);
	TAKEN(im2col, d.upper[0] = -9);
}

int main(void)
{
	int has = 0;

	CHECK(cuInit(0));
	CHECK(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0));
	REQUIRE_EQUAL(has, 1);
	what_both_have();
	boxes();
	pixels();
	EXPECT(cuTensorMapReplaceAddress(&maps[1], (void *)right.address), CUDA_ERROR_INVALID_VALUE);
	CHECK(tiled(&right));
	EXPECT(cuTensorMapReplaceAddress(maps, (void *)(right.address + 8)), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuTensorMapReplaceAddress(maps, (void *)(right.address + 16)));
	return 0;
}
