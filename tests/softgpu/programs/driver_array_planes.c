/* Arrays of video: planes are arrays themselves, with fewer texels for colours, and read as such. */
#include "driver.h"

CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *, CUarray);
CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *, CUarray);
CUresult cuArrayGetPlane(CUarray *, CUarray, unsigned int);
CUresult cuArrayDestroy(CUarray);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned int);
CUresult cuTexObjectCreate(CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *,
			   const CUDA_RESOURCE_VIEW_DESC *);
CUresult cuTexObjectDestroy(CUtexObject);

#define WIDTH 48
#define HEIGHT 32

/* texel(texture, out): both channels of the texel at 3, 2, as integers */
static const char texel[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry texel(.param .u64 pt, .param .u64 po)\n"
"{\n"
"	.reg .b32 %r<5>;\n"
"	.reg .f32 %f<3>;\n"
"	.reg .b64 %rd<3>;\n"
"	ld.param.u64 %rd1, [pt];\n"
"	ld.param.u64 %rd2, [po];\n"
"	mov.f32 %f1, 0f40600000;\n"	/* 3.5 */
"	mov.f32 %f2, 0f40200000;\n"	/* 2.5 */
"	tex.2d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1, %f2}];\n"
"	st.global.v2.u32 [%rd2], {%r1, %r2};\n"
"	ret;\n"
"}\n";

static CUarray plane_of(CUarray video, unsigned plane, CUarray_format format, unsigned channels, size_t width,
			size_t height)
{
	CUDA_ARRAY_DESCRIPTOR descriptor;
	CUarray array, again;

	CHECK(cuArrayGetPlane(&array, video, plane));
	CHECK(cuArrayGetPlane(&again, video, plane));
	REQUIRE(array == again);
	CHECK(cuArrayGetDescriptor_v2(&descriptor, array));
	REQUIRE_EQUAL(descriptor.Format, format);
	REQUIRE(descriptor.NumChannels == channels && descriptor.Width == width && descriptor.Height == height);
	return array;
}

static CUDA_MEMCPY2D copy_of(void *host, CUarray array, size_t width, size_t height, bool to)
{
	CUDA_MEMCPY2D copy = { .WidthInBytes = width, .Height = height };

	copy.srcMemoryType = to ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
	copy.dstMemoryType = to ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
	copy.srcHost = copy.dstHost = host;
	copy.srcPitch = copy.dstPitch = width;
	copy.srcArray = copy.dstArray = array;
	return copy;
}

static void copied(const CUDA_MEMCPY2D *copy, CUresult expected)
{
	EXPECT(cuMemcpy2D(copy), expected);
}

static void nv12(void)
{
	static unsigned char bright[HEIGHT][WIDTH], colours[HEIGHT / 2][WIDTH], got[HEIGHT][WIDTH];
	CUDA_RESOURCE_DESC resource = { .resType = CU_RESOURCE_TYPE_ARRAY };
	CUDA_TEXTURE_DESC texture = { .flags = CU_TRSF_READ_AS_INTEGER };
	CUDA_ARRAY_DESCRIPTOR shape = { WIDTH, HEIGHT, CU_AD_FORMAT_NV12, 3 };
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	CUarray video, other, planes[2];
	CUtexObject object;
	CUfunction function;
	unsigned values[2];
	CUdeviceptr out;
	CUmodule module;
	CUDA_MEMCPY2D copy;
	void *params[] = { &object, &out };

	CHECK(cuArrayCreate_v2(&video, &shape));
	CHECK(cuArray3DGetDescriptor_v2(&descriptor, video));
	REQUIRE(descriptor.Format == CU_AD_FORMAT_NV12 && descriptor.NumChannels == 3);
	planes[0] = plane_of(video, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, WIDTH, HEIGHT);
	planes[1] = plane_of(video, 1, CU_AD_FORMAT_UNSIGNED_INT8, 2, WIDTH / 2, HEIGHT / 2);
	EXPECT(cuArrayGetPlane(&other, video, 2), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuArrayGetPlane(&other, video, -1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuArrayGetPlane(NULL, video, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuArrayGetPlane(&other, planes[0], 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuArrayGetPlane(&other, NULL, 0), CUDA_ERROR_INVALID_HANDLE);

	for (unsigned y = 0; y < HEIGHT; y++)
		for (unsigned x = 0; x < WIDTH; x++) {
			bright[y][x] = (unsigned char)(y * WIDTH + x);
			colours[y / 2][x] = (unsigned char)(255 - (y / 2) * 7 - x);
		}
	copy = copy_of(bright, planes[0], WIDTH, HEIGHT, true);
	copied(&copy, CUDA_SUCCESS);
	copy = copy_of(colours, planes[1], WIDTH, HEIGHT / 2, true);
	copied(&copy, CUDA_SUCCESS);
	/* Neither lies in the other. */
	copy = copy_of(got, planes[0], WIDTH, HEIGHT, false);
	copied(&copy, CUDA_SUCCESS);
	REQUIRE(!memcmp(got, bright, sizeof bright));
	copy = copy_of(got, planes[1], WIDTH, HEIGHT / 2, false);
	copied(&copy, CUDA_SUCCESS);
	REQUIRE(!memcmp(got, colours, sizeof colours));
	copy = copy_of(got, planes[1], WIDTH, HEIGHT / 2 + 1, false);
	copied(&copy, CUDA_ERROR_INVALID_VALUE);
	/* The whole has no texels. */
	copy = copy_of(got, video, WIDTH, HEIGHT, false);
	copied(&copy, CUDA_ERROR_INVALID_VALUE);
	resource.res.array.hArray = video;
	EXPECT(cuTexObjectCreate(&object, &resource, &texture, NULL), CUDA_ERROR_INVALID_VALUE);

	resource.res.array.hArray = planes[1];
	CHECK(cuTexObjectCreate(&object, &resource, &texture, NULL));
	CHECK(cuModuleLoadData(&module, texel));
	CHECK(cuModuleGetFunction(&function, module, "texel"));
	CHECK(cuMemAlloc(&out, 8));
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	CHECK(cuMemcpyDtoH(values, out, 8));
	REQUIRE(values[0] == colours[2][6] && values[1] == colours[2][7]);
	CHECK(cuTexObjectDestroy(object));
	CHECK(cuMemFree(out));

	/* Planes go with what they are of. */
	EXPECT(cuArrayDestroy(planes[0]), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuArrayDestroy(video));
	EXPECT(cuArrayGetDescriptor_v2(&(CUDA_ARRAY_DESCRIPTOR){ 0 }, planes[0]), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuArrayGetPlane(&other, video, 0), CUDA_ERROR_INVALID_HANDLE);
}

static void others(void)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = { WIDTH, HEIGHT, 0, CU_AD_FORMAT_P016, 3, 0 };
	CUDA_ARRAY_DESCRIPTOR plain = { WIDTH, HEIGHT, CU_AD_FORMAT_UNSIGNED_INT8, 1 };
	CUmipmappedArray mipmap;
	CUarray video, other;

	CHECK(cuArray3DCreate_v2(&video, &shape));
	plane_of(video, 1, CU_AD_FORMAT_UNSIGNED_INT16, 2, WIDTH / 2, HEIGHT / 2);
	CHECK(cuArrayDestroy(video));
	shape.Format = CU_AD_FORMAT_NV16;
	CHECK(cuArray3DCreate_v2(&video, &shape));
	plane_of(video, 1, CU_AD_FORMAT_UNSIGNED_INT8, 2, WIDTH / 2, HEIGHT);
	CHECK(cuArrayDestroy(video));
	shape.Format = CU_AD_FORMAT_NV12;
	EXPECT(cuMipmappedArrayCreate(&mipmap, &shape, 2), CUDA_ERROR_INVALID_VALUE);
	shape.Width = WIDTH + 1;
	EXPECT(cuArray3DCreate_v2(&video, &shape), CUDA_ERROR_INVALID_VALUE);
	shape = (CUDA_ARRAY3D_DESCRIPTOR){ WIDTH, HEIGHT + 1, 0, CU_AD_FORMAT_NV12, 3, 0 };
	EXPECT(cuArray3DCreate_v2(&video, &shape), CUDA_ERROR_INVALID_VALUE);
	shape.Height = 0;
	EXPECT(cuArray3DCreate_v2(&video, &shape), CUDA_ERROR_INVALID_VALUE);
	shape.Height = HEIGHT;
	shape.NumChannels = 1;
	EXPECT(cuArray3DCreate_v2(&video, &shape), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuArrayCreate_v2(&video, &plain));
	EXPECT(cuArrayGetPlane(&other, video, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuArrayDestroy(video));
}

int main(void)
{
	CUDA_ARRAY_DESCRIPTOR shape = { WIDTH, HEIGHT, CU_AD_FORMAT_NV12, 3 };
	CUcontext context;
	CUarray video;

	begin();
	nv12();
	others();
	/* With the context, too. */
	CHECK(cuCtxCreate(&context, 0, 0));
	CHECK(cuArrayCreate_v2(&video, &shape));
	CHECK(cuCtxDestroy(context));
	EXPECT(cuArrayDestroy(video), CUDA_ERROR_INVALID_HANDLE);
	return 0;
}
