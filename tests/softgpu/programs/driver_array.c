/* softgpu: mem=64MiB
 * Arrays, and the objects made of them: what is refused, what is counted, what goes with
 * the context. */
#include "driver.h"

CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *, CUarray);
CUresult cuArrayDestroy(CUarray);
CUresult cuMemcpyHtoA_v2(CUarray, size_t, const void *, size_t);
CUresult cuMemcpyAtoA_v2(CUarray, size_t, CUarray, size_t, size_t);
CUresult cuMemcpyAtoH_v2(void *, CUarray, size_t, size_t);
CUresult cuMemcpyHtoAAsync_v2(CUarray, size_t, const void *, size_t, CUstream);
CUresult cuMemcpyHtoAAsync_v2_ptsz(CUarray, size_t, const void *, size_t, CUstream);
CUresult cuMemcpyAtoHAsync_v2(void *, CUarray, size_t, size_t, CUstream);
CUresult cuMemcpyAtoHAsync_v2_ptsz(void *, CUarray, size_t, size_t, CUstream);
CUresult cuTexObjectCreate(CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *,
			   const CUDA_RESOURCE_VIEW_DESC *);
CUresult cuTexObjectDestroy(CUtexObject);
CUresult cuSurfObjectCreate(CUsurfObject *, const CUDA_RESOURCE_DESC *);

static void refused(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	CUarray array;

	EXPECT(cuArray3DCreate_v2(&array, descriptor), CUDA_ERROR_INVALID_VALUE);
}

static void check_descriptors(void)
{
	CUDA_ARRAY3D_DESCRIPTOR good = { 8, 4, 0, CU_AD_FORMAT_FLOAT, 2, 0 }, bad = { 0 }, got;
	CUarray array;

	refused(&bad);		/* nothing is told yet, the format least of all */
	CHECK(cuArray3DCreate_v2(&array, &good));
	CHECK(cuArray3DGetDescriptor_v2(&got, array));
	REQUIRE(!memcmp(&got, &good, sizeof got));
	CHECK(cuArrayDestroy(array));
	EXPECT(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuArray3DGetDescriptor_v2(&got, array), CUDA_ERROR_INVALID_HANDLE);
	bad = good, bad.NumChannels = 3, refused(&bad);
	bad = good, bad.Width = 0, refused(&bad);
	bad = good, bad.Width = 1ul << 40, refused(&bad);
	bad = good, bad.Flags = 1, refused(&bad);			/* layered, and no layers */
	bad = good, bad.Depth = 6, bad.Flags = 4, refused(&bad);	/* a cube that is none */
	bad = good, bad.Height = 0, bad.Depth = 3, refused(&bad);
	bad = good, bad.Width = bad.Height = 8192;
	EXPECT(cuArray3DCreate_v2(&array, &bad), CUDA_ERROR_OUT_OF_MEMORY);
}

static void check_copies(void)
{
	CUDA_ARRAY_DESCRIPTOR descriptor = { 16, 0, CU_AD_FORMAT_UNSIGNED_INT16, 1 };
	unsigned short values[16], back[16] = { 0 };
	CUarray from, to;

	for (unsigned k = 0; k < 16; k++)
		values[k] = (unsigned short)(k * 3);
	CHECK(cuArrayCreate_v2(&from, &descriptor));
	CHECK(cuArrayCreate_v2(&to, &descriptor));
	CHECK(cuMemcpyHtoA_v2(from, 0, values, sizeof values));
	CHECK(cuMemcpyAtoA_v2(to, 4, from, 8, 20));
	CHECK(cuMemcpyAtoH_v2(back, to, 4, 20));
	REQUIRE(!memcmp(back, values + 4, 20));
	CHECK(cuMemcpyHtoAAsync_v2(to, 6, values, 12, NULL));
	CHECK(cuMemcpyAtoHAsync_v2(back, to, 6, 12, NULL));
	CHECK(cuStreamSynchronize(NULL));
	REQUIRE(!memcmp(back, values, 12));
	CHECK(cuMemcpyHtoAAsync_v2_ptsz(to, 2, values + 6, 8, NULL));
	CHECK(cuMemcpyAtoHAsync_v2_ptsz(back, to, 2, 8, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE(!memcmp(back, values + 6, 8));
	EXPECT(cuMemcpyAtoHAsync_v2(back, to, 30, 4, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyAtoH_v2(back, to, 30, 4), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyHtoA_v2(to, 33, values, 2), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyHtoA_v2(to, 1, values, 2), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuArrayDestroy(from));
	CHECK(cuArrayDestroy(to));
}

static void check_objects(void)
{
	CUDA_ARRAY_DESCRIPTOR descriptor = { 16, 16, CU_AD_FORMAT_UNSIGNED_INT8, 4 };
	CUDA_RESOURCE_DESC resource = { .resType = CU_RESOURCE_TYPE_ARRAY };
	CUDA_TEXTURE_DESC texture = { .filterMode = CU_TR_FILTER_MODE_LINEAR };
	CUsurfObject surface;
	CUtexObject object;
	CUarray array;

	CHECK(cuArrayCreate_v2(&array, &descriptor));
	resource.res.array.hArray = array;
	CHECK(cuTexObjectCreate(&object, &resource, &texture, NULL));
	CHECK(cuTexObjectDestroy(object));
	EXPECT(cuTexObjectDestroy(object), CUDA_ERROR_INVALID_VALUE);
	texture.flags = 1;	/* integers as they are can't be filtered */
	EXPECT(cuTexObjectCreate(&object, &resource, &texture, NULL), CUDA_ERROR_INVALID_VALUE);
	/* The array was not made for surfaces. */
	EXPECT(cuSurfObjectCreate(&surface, &resource), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuArrayDestroy(array));
	EXPECT(cuTexObjectCreate(&object, &resource, &texture, NULL), CUDA_ERROR_INVALID_HANDLE);
}

int main(void)
{
	CUDA_ARRAY_DESCRIPTOR descriptor = { 1024, 1024, CU_AD_FORMAT_FLOAT, 1 };
	size_t before, with, after, total;
	CUdevice device;
	CUarray array;

	begin();
	check_descriptors();
	check_copies();
	check_objects();
	CHECK(cuMemGetInfo(&before, &total));
	CHECK(cuArrayCreate_v2(&array, &descriptor));
	CHECK(cuMemGetInfo(&with, &total));
	REQUIRE(before - with >= 4ul << 20);
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxReset(device));
	begin();
	EXPECT(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuMemGetInfo(&after, &total));
	REQUIRE(after == before);
	return 0;
}
