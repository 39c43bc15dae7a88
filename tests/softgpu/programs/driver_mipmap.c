/* Levels of a mipmapped array are arrays; textures on it choose and blend them. */
#include "driver.h"

CUresult cuMipmappedArrayCreate(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned int);
CUresult cuMipmappedArrayGetLevel(CUarray *, CUmipmappedArray, unsigned int);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray);
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *, CUarray);
CUresult cuArrayDestroy(CUarray);
CUresult cuTexObjectCreate(CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *,
			   const CUDA_RESOURCE_VIEW_DESC *);
CUresult cuTexObjectDestroy(CUtexObject);

#define NORMALIZED_COORDINATES 0x02u	/* cuda.h: CU_TRSF_NORMALIZED_COORDINATES */
#define WIDTH 8u
#define LEVELS 4u
#define BLENDS true

static const char code[] =
".version 7.0\n.target sm_75\n.address_size 64\n"
".visible .entry level(.param .u64 pa, .param .u64 pt, .param .f32 pl)\n{\n"
"	.reg .f32 %f<9>;\n	.reg .b64 %rd<3>;\n"
"	ld.param.u64 %rd1, [pa];\n	ld.param.u64 %rd2, [pt];\n	ld.param.f32 %f1, [pl];\n"
"	mov.f32 %f2, 0f3F000000;\n"
"	tex.level.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd2, {%f2, %f2}], %f1;\n"
"	st.global.f32 [%rd1], %f3;\n	ret;\n}\n"
".visible .entry gradient(.param .u64 pa, .param .u64 pt, .param .f32 pl)\n{\n"
"	.reg .f32 %f<9>;\n	.reg .b64 %rd<3>;\n"
"	ld.param.u64 %rd1, [pa];\n	ld.param.u64 %rd2, [pt];\n	ld.param.f32 %f1, [pl];\n"
"	mov.f32 %f2, 0f3F000000;\n	mov.f32 %f7, 0f00000000;\n"
"	tex.grad.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd2, {%f2, %f2}], {%f1, %f7}, {%f7, %f7};\n"
"	st.global.f32 [%rd1], %f3;\n	ret;\n}\n"
".visible .entry levels(.param .u64 pa, .param .u64 pt, .param .f32 pl)\n{\n"
"	.reg .f32 %f<2>;\n	.reg .b32 %r<2>;\n	.reg .b64 %rd<3>;\n"
"	ld.param.u64 %rd1, [pa];\n	ld.param.u64 %rd2, [pt];\n"
"	txq.num_mipmap_levels.b32 %r1, [%rd2];\n	cvt.rn.f32.u32 %f1, %r1;\n"
"	st.global.f32 [%rd1], %f1;\n	ret;\n}\n";

static CUmipmappedArray mipmap;
static CUmodule module;

static CUtexObject texture(bool blends, float bias, float least, float most,
			   const CUDA_RESOURCE_VIEW_DESC *view)
{
	CUDA_RESOURCE_DESC resource = { .resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY };
	CUDA_TEXTURE_DESC how = {
		.flags = NORMALIZED_COORDINATES, .mipmapLevelBias = bias,
		.mipmapFilterMode = blends ? CU_TR_FILTER_MODE_LINEAR : CU_TR_FILTER_MODE_POINT,
		.minMipmapLevelClamp = least, .maxMipmapLevelClamp = most,
	};
	CUtexObject object;

	resource.res.mipmap.hMipmappedArray = mipmap;
	CHECK(cuTexObjectCreate(&object, &resource, &how, view));
	return object;
}

/* What a kernel of the module gets from the texture, which goes. */
static float fetch(const char *name, CUtexObject object, float argument)
{
	CUdeviceptr out;
	void *params[] = { &out, &object, &argument };
	CUfunction function;
	float value;

	CHECK(cuMemAlloc(&out, 4));
	CHECK(cuModuleGetFunction(&function, module, name));
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	CHECK(cuMemcpyDtoH(&value, out, 4));
	CHECK(cuMemFree(out));
	CHECK(cuTexObjectDestroy(object));
	return value;
}

/* Level k holds 10 (k + 1) everywhere. */
static void fill(void)
{
	for (unsigned level = 0; level < LEVELS; level++) {
		CUDA_ARRAY3D_DESCRIPTOR shape;
		float values[WIDTH * WIDTH];
		CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = values,
				       .dstMemoryType = CU_MEMORYTYPE_ARRAY };

		CHECK(cuMipmappedArrayGetLevel(&copy.dstArray, mipmap, level));
		CHECK(cuArray3DGetDescriptor_v2(&shape, copy.dstArray));
		REQUIRE_EQUAL(shape.Width, WIDTH >> level);
		REQUIRE_EQUAL(shape.Height, WIDTH >> level);
		REQUIRE_EQUAL(shape.Depth, 0);
		for (unsigned k = 0; k < WIDTH * WIDTH; k++)
			values[k] = 10.0f * (float)(level + 1);
		copy.srcPitch = copy.WidthInBytes = shape.Width * sizeof(float);
		copy.Height = shape.Height;
		CHECK(cuMemcpy2D(&copy));
	}
}

int main(void)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = { .Width = WIDTH, .Height = WIDTH,
					  .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1 };
	CUDA_RESOURCE_VIEW_DESC view = { .firstMipmapLevel = 1, .lastMipmapLevel = 2 };
	CUarray level;

	begin();
	CHECK(cuModuleLoadData(&module, code));
	/* More levels than there can be are as many as there can be. */
	CHECK(cuMipmappedArrayCreate(&mipmap, &shape, 99));
	EXPECT(cuMipmappedArrayGetLevel(&level, mipmap, LEVELS), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMipmappedArrayGetLevel(&level, mipmap, 0));
	EXPECT(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE);
	fill();

	REQUIRE(fetch("levels", texture(!BLENDS, 0, 0, 99, NULL), 0) == LEVELS);
	REQUIRE(fetch("level", texture(!BLENDS, 0, 0, 99, NULL), 0) == 10);
	REQUIRE(fetch("level", texture(!BLENDS, 0, 0, 99, NULL), 1.4f) == 20);
	REQUIRE(fetch("level", texture(!BLENDS, 0, 0, 99, NULL), 1.6f) == 30);
	REQUIRE(fetch("level", texture(BLENDS, 0, 0, 99, NULL), 1.25f) == 22.5f);
	REQUIRE(fetch("level", texture(BLENDS, 0, 0, 99, NULL), 77) == 40);
	/* The bias comes first, then the clamp. */
	REQUIRE(fetch("level", texture(BLENDS, 0.5f, 0, 99, NULL), 1) == 25);
	REQUIRE(fetch("level", texture(BLENDS, 0, 0, 1.5f, NULL), 3) == 25);
	REQUIRE(fetch("level", texture(BLENDS, -9, 0.75f, 99, NULL), 3) == 17.5f);
	/* A step of a quarter of the width is two texels: level 1. */
	REQUIRE(fetch("gradient", texture(BLENDS, 0, 0, 99, NULL), 0.25f) == 20);
	REQUIRE(fetch("gradient", texture(BLENDS, 0, 0, 99, NULL), 0) == 10);
	/* A view's levels count from its first one. */
	REQUIRE(fetch("level", texture(BLENDS, 0, 0, 99, &view), 0) == 20);
	REQUIRE(fetch("level", texture(BLENDS, 0, 0, 99, &view), 9) == 30);
	REQUIRE(fetch("levels", texture(BLENDS, 0, 0, 99, &view), 0) == 2);
	/* It may name the format that there is. */
	view.format = CU_RES_VIEW_FORMAT_FLOAT_1X32;
	REQUIRE(fetch("level", texture(BLENDS, 0, 0, 99, &view), 0) == 20);

	CHECK(cuMipmappedArrayDestroy(mipmap));
	EXPECT(cuMipmappedArrayDestroy(mipmap), CUDA_ERROR_INVALID_HANDLE);
	return 0;
}
