/* What the driver says of sparse arrays, which can't be mapped remotely; and of others, which are none. */
#include "calls.h"

static CUDA_ARRAY_SPARSE_PROPERTIES properties;

static void arrays(void)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {
		.Width = 512, .Height = 512, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1,
		.Flags = CUDA_ARRAY3D_SPARSE,
	};
	CUarray flat, deep, plain;

	CHECK(cuArray3DCreate_v2(&flat, &shape));
	shape.Width = shape.Height = shape.Depth = 64;
	CHECK(cuArray3DCreate_v2(&deep, &shape));
	shape.Flags = 0;
	CHECK(cuArray3DCreate_v2(&plain, &shape));
	CHECK(cuArrayGetSparseProperties(&properties, flat));
	REQUIRE(properties.tileExtent.width == 128 && properties.tileExtent.height == 128);
	REQUIRE(properties.tileExtent.depth == 1 && !properties.miptailSize && !properties.flags);
	CHECK(cuArrayGetSparseProperties(&properties, deep));
	REQUIRE(properties.tileExtent.width == 32 && properties.tileExtent.depth == 16);
	EXPECT(cuArrayGetSparseProperties(&properties, plain), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuArrayGetSparseProperties(NULL, flat), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuArrayGetSparseProperties(&properties, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuArrayGetSparseProperties(&properties, (CUarray)0x1230), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuArrayDestroy(flat));
	EXPECT(cuArrayGetSparseProperties(&properties, flat), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuArrayDestroy(deep));
	CHECK(cuArrayDestroy(plain));
}

static void mipmaps(void)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {
		.Width = 512, .Height = 512, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1,
		.Flags = CUDA_ARRAY3D_SPARSE,
	};
	CUmipmappedArray sparse, plain;
	CUarray level;

	CHECK(cuMipmappedArrayCreate(&sparse, &shape, 5));
	shape.Flags = 0;
	CHECK(cuMipmappedArrayCreate(&plain, &shape, 5));
	CHECK(cuMipmappedArrayGetSparseProperties(&properties, sparse));
	REQUIRE(properties.tileExtent.width == 128 && properties.tileExtent.height == 128);
	/* 512, 256, 128, and then less than a tile. */
	REQUIRE_EQUAL(properties.miptailFirstLevel, 3);
	REQUIRE(properties.miptailSize == 65536 && properties.flags == 1);	/* a single tail */;
	EXPECT(cuMipmappedArrayGetSparseProperties(&properties, plain), CUDA_ERROR_INVALID_VALUE);
	/* Of a level its array has to be asked. */
	CHECK(cuMipmappedArrayGetLevel(&level, sparse, 0));
	EXPECT(cuArrayGetSparseProperties(&properties, level), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMipmappedArrayGetSparseProperties(&properties, (CUmipmappedArray)level), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuMipmappedArrayDestroy(sparse));
	CHECK(cuMipmappedArrayDestroy(plain));
}

int main(void)
{
	int supported = 7;

	begin();
	/* Programs that ask don't make any. */
	CHECK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 0));
	REQUIRE_EQUAL(supported, 0);
	arrays();
	mipmaps();
	return 0;
}
