/* arrays.c - arrays and mipmapped arrays (quota.h). */
#include "quota.h"
#include "arrays.h"

/* What a texel takes, at most: a block of 4 times 4 has 16 bytes, and of video 4 samples of 16 bits. */
static uint64_t texel(CUarray_format format, unsigned channels)
{
	if (!channels)
		channels = 1;
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
	case CU_AD_FORMAT_UNORM_INT8X1:
	case CU_AD_FORMAT_UNORM_INT8X2:
	case CU_AD_FORMAT_UNORM_INT8X4:
	case CU_AD_FORMAT_SNORM_INT8X1:
	case CU_AD_FORMAT_SNORM_INT8X2:
	case CU_AD_FORMAT_SNORM_INT8X4:
		return channels;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
	case CU_AD_FORMAT_UNORM_INT16X1:
	case CU_AD_FORMAT_UNORM_INT16X2:
	case CU_AD_FORMAT_UNORM_INT16X4:
	case CU_AD_FORMAT_SNORM_INT16X1:
	case CU_AD_FORMAT_SNORM_INT16X2:
	case CU_AD_FORMAT_SNORM_INT16X4:
		return 2ull * channels;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4ull * channels;
	case CU_AD_FORMAT_UNORM_INT_101010_2:
		return 4;
	default:
		return format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB ? 1 : 8;
	}
}

/* Of the level of that number; layers are as many on each.  What is mapped later is none yet. */
static uint64_t texels(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned level)
{
	uint64_t bytes = texel(shape->Format, shape->NumChannels), width = shape->Width >> level;
	uint64_t height = shape->Height >> level, depth = shape->Depth;

	if (shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	if (!(shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
		depth >>= level;
	if (__builtin_mul_overflow(bytes, width ? width : 1, &bytes) ||
	    __builtin_mul_overflow(bytes, height ? height : 1, &bytes) ||
	    __builtin_mul_overflow(bytes, depth ? depth : 1, &bytes))
		return UINT64_MAX;
	return bytes;
}

static CUresult array_create(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape)
{
	CUDA_ARRAY3D_DESCRIPTOR whole = { 0 };
	CUresult result;
	struct charge *charge;

	if (!array || !shape)
		return CUDA_ERROR_INVALID_VALUE;
	whole.Width = shape->Width;
	whole.Height = shape->Height;
	whole.Format = shape->Format;
	whole.NumChannels = shape->NumChannels;
	charge = quota_charge_begin(ARRAY, texels(&whole, 0));
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuArrayCreate_v2(array, shape);
	return quota_charge_end(charge, result, (uint64_t)(uintptr_t)*array);
}

static CUresult array_create_3d(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	CUresult result;
	struct charge *charge;

	if (!array || !shape)
		return CUDA_ERROR_INVALID_VALUE;
	charge = quota_charge_begin(ARRAY, texels(shape, 0));
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuArray3DCreate_v2(array, shape);
	return quota_charge_end(charge, result, (uint64_t)(uintptr_t)*array);
}

static CUresult array_destroy(CUarray array)
{
	QUOTA_GIVE_BACK(ARRAY, (uintptr_t)array, quota.real.cuArrayDestroy(array));
}

static CUresult mipmap_create(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape,
			      unsigned int levels)
{
	uint64_t bytes = 0;
	struct charge *charge;
	CUresult result;

	if (!array || !shape)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < levels && i < 32; i++)
		if (__builtin_add_overflow(bytes, texels(shape, i), &bytes))
			return CUDA_ERROR_OUT_OF_MEMORY;
	charge = quota_charge_begin(MIPMAP, bytes);
	if (!charge)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = quota.real.cuMipmappedArrayCreate(array, shape, levels);
	return quota_charge_end(charge, result, (uint64_t)(uintptr_t)*array);
}

static CUresult mipmap_destroy(CUmipmappedArray array)
{
	QUOTA_GIVE_BACK(MIPMAP, (uintptr_t)array, quota.real.cuMipmappedArrayDestroy(array));
}

void quota_arrays_install(struct server_driver *driver)
{
	QUOTA_INSTEAD(cuArrayCreate_v2, array_create);
	QUOTA_INSTEAD(cuArray3DCreate_v2, array_create_3d);
	QUOTA_INSTEAD(cuArrayDestroy, array_destroy);
	QUOTA_INSTEAD(cuMipmappedArrayCreate, mipmap_create);
	QUOTA_INSTEAD(cuMipmappedArrayDestroy, mipmap_destroy);
}
