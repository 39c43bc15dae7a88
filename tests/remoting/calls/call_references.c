/* Texture and surface references: what is bound when a kernel is launched is what it fetches. */
#include "calls.h"

/* line(out, x): out = line[x], by index;  plane(out, x, y): filtered;  levels(out, x, level);
 * put(x, value): writes a word of the surface */
static const char references[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".global .texref line;\n"
".global .texref plane;\n"
".global .texref levels;\n"
".global .surfref sheet;\n"
".visible .entry fetch_line(.param .u64 pa, .param .u32 px)\n"
"{\n"
"	.reg .f32 %f<5>;\n"
"	.reg .b32 %r<2>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	ld.param.u32 %r1, [px];\n"
"	tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [line, {%r1}];\n"
"	st.global.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};\n"
"	ret;\n"
"}\n"
".visible .entry fetch_plane(.param .u64 pa, .param .f32 px, .param .f32 py)\n"
"{\n"
"	.reg .f32 %f<7>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	ld.param.f32 %f5, [px];\n"
"	ld.param.f32 %f6, [py];\n"
"	tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [plane, {%f5, %f6}];\n"
"	st.global.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};\n"
"	ret;\n"
"}\n"
".visible .entry fetch_levels(.param .u64 pa, .param .f32 px, .param .f32 plevel)\n"
"{\n"
"	.reg .f32 %f<7>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	ld.param.f32 %f5, [px];\n"
"	ld.param.f32 %f6, [plevel];\n"
"	tex.level.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [levels, {%f5}], %f6;\n"
"	st.global.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};\n"
"	ret;\n"
"}\n"
".visible .entry put(.param .u32 px, .param .u32 pvalue)\n"
"{\n"
"	.reg .b32 %r<3>;\n"
"	ld.param.u32 %r1, [px];\n"
"	ld.param.u32 %r2, [pvalue];\n"
"	sust.b.1d.b32.trap [sheet, {%r1}], {%r2};\n"
"	ret;\n"
"}\n";

static CUmodule module;
static CUdeviceptr out;

static CUfunction kernel(const char *name)
{
	CUfunction function;

	CHECK(cuModuleGetFunction(&function, module, name));
	return function;
}

/* The first channel. */
static float fetched(const char *name, void *x, void *y)
{
	void *parameters[] = { &out, x, y };
	float values[4];

	CHECK(cuLaunchKernel(kernel(name), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	CHECK(cuMemcpyDtoH_v2(values, out, sizeof(values)));
	return values[0];
}

static float at(int x)
{
	return fetched("fetch_line", &x, NULL);
}

static float plane_at(float x, float y)
{
	return fetched("fetch_plane", &x, &y);
}

static float level_at(float x, float level)
{
	return fetched("fetch_levels", &x, &level);
}

static CUtexref reference(const char *name)
{
	CUtexref found;

	CHECK(cuModuleGetTexRef(&found, module, name));
	return found;
}

static void lines(void)
{
	static const float values[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	static const unsigned char bytes[] = { 0, 51, 255, 102 };
	CUtexref line = reference("line"), again = reference("line");
	CUdeviceptr memory, told;
	CUarray_format format;
	size_t offset = 1;
	int channels;

	REQUIRE(line == again);
	EXPECT(cuModuleGetTexRef(&again, module, "none"), CUDA_ERROR_NOT_FOUND);
	EXPECT(cuModuleGetTexRef(&again, module, "sheet"), CUDA_ERROR_NOT_FOUND);
	CHECK(cuMemAlloc_v2(&memory, 4096));
	CHECK(cuMemcpyHtoD_v2(memory, values, sizeof(values)));
	EXPECT(cuTexRefGetAddress_v2(&told, line), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuTexRefSetFormat(line, CU_AD_FORMAT_FLOAT, 1));
	CHECK(cuTexRefSetAddress_v2(&offset, line, memory, sizeof(values)));
	REQUIRE_EQUAL(offset, 0);
	CHECK(cuTexRefGetAddress_v2(&told, line));
	REQUIRE_EQUAL(told, memory);
	CHECK(cuParamSetTexRef(kernel("fetch_line"), CU_PARAM_TR_DEFAULT, line));
	EXPECT(cuParamSetTexRef(kernel("fetch_line"), 0, line), CUDA_ERROR_INVALID_VALUE);
	REQUIRE(at(2) == 3 && at(7) == 8 && at(8) == 0);
	/* Behind the place where a texture can begin: the kernel adds the offset. */
	CHECK(cuTexRefSetAddress_v2(&offset, line, memory + 8, 8));
	REQUIRE_EQUAL(offset, 8);
	REQUIRE(at((int)offset / 4) == 3 && at(4) == 0);
	EXPECT(cuTexRefSetAddress_v2(NULL, line, memory + 8, 8), CUDA_ERROR_INVALID_VALUE);
	/* Bytes as fractions, then as what they are. */
	CHECK(cuMemcpyHtoD_v2(memory + 512, bytes, sizeof(bytes)));
	CHECK(cuTexRefSetFormat(line, CU_AD_FORMAT_UNSIGNED_INT8, 2));
	CHECK(cuTexRefGetFormat(&format, &channels, line));
	REQUIRE(format == CU_AD_FORMAT_UNSIGNED_INT8 && channels == 2);
	CHECK(cuTexRefSetAddress_v2(&offset, line, memory + 512, sizeof(bytes)));
	REQUIRE(at(1) == 1.0f && at(0) == 0.0f);
	CHECK(cuTexRefSetFlags(line, CU_TRSF_READ_AS_INTEGER));
	at(1);
	REQUIRE_EQUAL(word_at(out), 255);
	REQUIRE_EQUAL(word_at(out + 4), 102);
	CHECK(cuMemFree_v2(memory));
}

/* What was queued keeps what was bound then. */
static void queued(void)
{
	CUtexref line = reference("line");
	CUdeviceptr first, second;
	unsigned flags = 7;
	size_t offset;
	CUdeviceptr gate = words(1, 0);
	CUstream stream;
	int x = 0;
	void *parameters[] = { &out, &x };

	first = words(4, 0x3f800000);	/* 1.0 */
	second = words(4, 0x40000000);	/* 2.0 */
	CHECK(cuTexRefSetFlags(line, 0));
	CHECK(cuTexRefGetFlags(&flags, line));
	REQUIRE_EQUAL(flags, 0);
	CHECK(cuTexRefSetFormat(line, CU_AD_FORMAT_FLOAT, 1));
	CHECK(cuTexRefSetAddress_v2(&offset, line, first, 16));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamWaitValue32_v2(stream, gate, 1, CU_STREAM_WAIT_VALUE_EQ));
	CHECK(cuLaunchKernel(kernel("fetch_line"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
	CHECK(cuTexRefSetAddress_v2(&offset, line, second, 16));
	CHECK(cuMemcpyHtoD_v2(gate, &(unsigned){ 1 }, 4));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(out), 0x3f800000);
	REQUIRE(at(0) == 2.0f);
	CHECK(cuStreamDestroy_v2(stream));
}

static void planes(void)
{
	static const float values[2][4] = { { 1, 3, 5, 7 }, { 11, 13, 15, 17 } };
	static const float violet[4] = { 9, 8, 7, 6 };
	const CUDA_ARRAY3D_DESCRIPTOR description = {
		.Width = 4, .Height = 2, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1,
	};
	CUDA_ARRAY_DESCRIPTOR pitched = { 4, 2, CU_AD_FORMAT_FLOAT, 1 };
	CUDA_MEMCPY2D copy = {
		.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = values, .srcPitch = 16,
		.dstMemoryType = CU_MEMORYTYPE_ARRAY, .WidthInBytes = 16, .Height = 2,
	};
	CUtexref plane = reference("plane");
	CUaddress_mode mode;
	CUfilter_mode filter;
	float color[4];
	CUarray array, told;
	CUdeviceptr memory, address;
	size_t pitch;
	int most;

	CHECK(cuArray3DCreate_v2(&array, &description));
	copy.dstArray = array;
	CHECK(cuMemcpy2D_v2(&copy));
	EXPECT(cuTexRefSetArray(plane, array, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuTexRefGetArray(&told, plane), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuTexRefSetArray(plane, array, 1));
	CHECK(cuTexRefGetArray(&told, plane));
	REQUIRE(told == array);
	REQUIRE(plane_at(1.0f, 0.5f) == 3 && plane_at(9.0f, 0.5f) == 7);
	CHECK(cuTexRefSetFilterMode(plane, CU_TR_FILTER_MODE_LINEAR));
	CHECK(cuTexRefGetFilterMode(&filter, plane));
	REQUIRE_EQUAL(filter, CU_TR_FILTER_MODE_LINEAR);
	REQUIRE(plane_at(1.0f, 0.5f) == 2 && plane_at(1.0f, 1.0f) == 7);
	CHECK(cuTexRefSetAddressMode(plane, 0, CU_TR_ADDRESS_MODE_BORDER));
	CHECK(cuTexRefGetAddressMode(&mode, plane, 0));
	REQUIRE_EQUAL(mode, CU_TR_ADDRESS_MODE_BORDER);
	CHECK(cuTexRefGetAddressMode(&mode, plane, 1));
	REQUIRE_EQUAL(mode, CU_TR_ADDRESS_MODE_CLAMP);
	EXPECT(cuTexRefSetAddressMode(plane, 3, mode), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuTexRefSetBorderColor(plane, (float *)violet));
	CHECK(cuTexRefGetBorderColor(color, plane));
	REQUIRE(!memcmp(color, violet, sizeof(color)));
	REQUIRE(plane_at(9.0f, 0.5f) == 9);
	CHECK(cuTexRefSetFlags(plane, CU_TRSF_NORMALIZED_COORDINATES));
	CHECK(cuTexRefSetFilterMode(plane, CU_TR_FILTER_MODE_POINT));
	REQUIRE(plane_at(0.4f, 0.75f) == 13);
	CHECK(cuTexRefSetMaxAnisotropy(plane, 4));
	CHECK(cuTexRefGetMaxAnisotropy(&most, plane));
	REQUIRE_EQUAL(most, 4);
	/* The same from rows in memory. */
	CHECK(cuMemAllocPitch_v2(&memory, &pitch, 16, 2, 4));
	CHECK(cuMemcpyHtoD_v2(memory, values[1], 16));
	CHECK(cuMemcpyHtoD_v2(memory + pitch, values[0], 16));
	CHECK(cuTexRefSetAddress2D_v3(plane, &pitched, memory, pitch));
	CHECK(cuTexRefGetAddress_v2(&address, plane));
	REQUIRE_EQUAL(address, memory);
	EXPECT(cuTexRefGetArray(&told, plane), CUDA_ERROR_INVALID_VALUE);
	REQUIRE(plane_at(0.4f, 0.75f) == 3);
	EXPECT(cuTexRefSetAddress2D_v3(plane, &pitched, memory + 4, pitch), CUDA_ERROR_INVALID_VALUE);
	pitched.Height = 1;
	CHECK(cuTexRefSetAddress2D_v2(plane, &pitched, memory + pitch, pitch));
	REQUIRE(plane_at(0.4f, 0.75f) == 3 && plane_at(0.9f, 0.0f) == 7);
	CHECK(cuMemFree_v2(memory));
	CHECK(cuArrayDestroy(array));
}

static void mipmaps(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR description = {
		.Width = 4, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1,
	};
	static const float values[] = { 1, 2, 3, 4, 10, 20 };
	CUtexref levels = reference("levels");
	CUmipmappedArray array, told;
	CUfilter_mode filter;
	CUarray level;
	float bias, least, most;

	CHECK(cuMipmappedArrayCreate(&array, &description, 2));
	CHECK(cuMipmappedArrayGetLevel(&level, array, 0));
	CHECK(cuMemcpyHtoA_v2(level, 0, values, 16));
	CHECK(cuMipmappedArrayGetLevel(&level, array, 1));
	CHECK(cuMemcpyHtoA_v2(level, 0, values + 4, 8));
	CHECK(cuTexRefSetMipmappedArray(levels, array, 1));
	CHECK(cuTexRefGetMipmappedArray(&told, levels));
	REQUIRE(told == array);
	CHECK(cuTexRefSetFlags(levels, CU_TRSF_NORMALIZED_COORDINATES));
	REQUIRE(level_at(0.9f, 1.0f) == 4);	/* clamped to the first level */
	CHECK(cuTexRefSetMipmapLevelClamp(levels, 0, 1));
	CHECK(cuTexRefGetMipmapLevelClamp(&least, &most, levels));
	REQUIRE(least == 0 && most == 1);
	REQUIRE(level_at(0.9f, 1.0f) == 20 && level_at(0.9f, 0.0f) == 4);
	CHECK(cuTexRefSetMipmapFilterMode(levels, CU_TR_FILTER_MODE_LINEAR));
	CHECK(cuTexRefGetMipmapFilterMode(&filter, levels));
	REQUIRE_EQUAL(filter, CU_TR_FILTER_MODE_LINEAR);
	REQUIRE(level_at(0.9f, 0.5f) == 12);
	CHECK(cuTexRefSetMipmapLevelBias(levels, 1));
	CHECK(cuTexRefGetMipmapLevelBias(&bias, levels));
	REQUIRE(bias == 1);
	REQUIRE(level_at(0.9f, 0.0f) == 20);
	CHECK(cuMipmappedArrayDestroy(array));
}

static void surfaces(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR description = {
		.Width = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1,
		.Flags = CUDA_ARRAY3D_SURFACE_LDST,
	};
	CUarray array, told;
	CUsurfref sheet;
	unsigned x = 8, value = 77, got[4] = { 0 };
	void *parameters[] = { &x, &value };

	CHECK(cuModuleGetSurfRef(&sheet, module, "sheet"));
	EXPECT(cuModuleGetSurfRef(&sheet, module, "line"), CUDA_ERROR_NOT_FOUND);
	CHECK(cuArray3DCreate_v2(&array, &description));
	CHECK(cuMemcpyHtoA_v2(array, 0, got, sizeof(got)));
	CHECK(cuSurfRefSetArray(sheet, array, 0));
	CHECK(cuSurfRefGetArray(&told, sheet));
	REQUIRE(told == array);
	CHECK(cuLaunchKernel(kernel("put"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	CHECK(cuMemcpyAtoH_v2(got, array, 0, sizeof(got)));
	REQUIRE(got[2] == 77 && !got[0] && !got[1] && !got[3]);
	CHECK(cuArrayDestroy(array));
}

/* One that no kernel knows keeps what it is told, until it is destroyed. */
static void alone(void)
{
	CUtexref made;
	CUfilter_mode filter;

	CHECK(cuTexRefCreate(&made));
	CHECK(cuTexRefSetFilterMode(made, CU_TR_FILTER_MODE_LINEAR));
	CHECK(cuTexRefGetFilterMode(&filter, made));
	REQUIRE_EQUAL(filter, CU_TR_FILTER_MODE_LINEAR);
	EXPECT(cuParamSetTexRef(kernel("fetch_line"), CU_PARAM_TR_DEFAULT, made),
	       CUDA_ERROR_INVALID_VALUE);
	CHECK(cuTexRefDestroy(made));
	EXPECT(cuTexRefGetFilterMode(&filter, made), CUDA_ERROR_INVALID_HANDLE);
}

int main(void)
{
	CUtexref line;
	unsigned flags;

	begin();
	out = words(4, 0);
	CHECK(cuModuleLoadData(&module, references));
	lines();
	queued();
	planes();
	mipmaps();
	surfaces();
	alone();
	line = reference("line");
	CHECK(cuModuleUnload(module));
	EXPECT(cuTexRefGetFlags(&flags, line), CUDA_ERROR_INVALID_HANDLE);
	return 0;
}
