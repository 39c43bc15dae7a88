/* Arrays: described, copied to and from everything, seen through texture and surface objects. */
#include "calls.h"

int main(void)
{
	CUDA_ARRAY_DESCRIPTOR line = { .Width = 16, .Height = 0, .Format = CU_AD_FORMAT_UNSIGNED_INT32,
				       .NumChannels = 1 }, told;
	CUDA_ARRAY3D_DESCRIPTOR solid = { .Width = 4, .Height = 4, .Depth = 4,
					  .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1,
					  .Flags = CUDA_ARRAY3D_SURFACE_LDST }, solid_told;
	CUDA_RESOURCE_DESC resource = { .resType = CU_RESOURCE_TYPE_ARRAY }, resource_told;
	CUDA_TEXTURE_DESC texture = { .filterMode = CU_TR_FILTER_MODE_POINT,
				      .flags = CU_TRSF_READ_AS_INTEGER }, texture_told;
	CUDA_MEMCPY2D rows = { .srcMemoryType = CU_MEMORYTYPE_HOST, .dstMemoryType = CU_MEMORYTYPE_ARRAY,
			       .srcPitch = 64, .WidthInBytes = 64, .Height = 1 };
	CUDA_MEMCPY3D box = { .srcMemoryType = CU_MEMORYTYPE_HOST, .dstMemoryType = CU_MEMORYTYPE_ARRAY,
			      .srcPitch = 16, .srcHeight = 4, .WidthInBytes = 16, .Height = 4,
			      .Depth = 4 };
	unsigned here[64], back[64] = { 0 };
	CUarray first, second, cube;
	CUdeviceptr memory;
	CUtexObject seen;
	CUsurfObject written;
	CUstream stream;

	begin();
	memory = words(64, 0);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (unsigned i = 0; i < 64; i++)
		here[i] = 100 + i;
	CHECK(cuArrayCreate_v2(&first, &line));
	CHECK(cuArrayCreate_v2(&second, &line));
	CHECK(cuArrayGetDescriptor_v2(&told, first));
	REQUIRE(told.Width == 16 && told.Format == line.Format);

	CHECK(cuMemcpyHtoA_v2(first, 0, here, 64));
	CHECK(cuMemcpyAtoH_v2(back, first, 0, 64));
	REQUIRE(!memcmp(here, back, 64));
	CHECK(cuMemcpyAtoA_v2(second, 4, first, 0, 8));
	CHECK(cuMemcpyAtoH_v2(back, second, 4, 8));
	REQUIRE(back[0] == 100 && back[1] == 101);
	CHECK(cuMemcpyAtoD_v2(memory, first, 8, 8));
	REQUIRE(word_at(memory) == 102 && word_at(memory + 4) == 103);
	CHECK(cuMemsetD32_v2(memory, 7, 16));
	CHECK(cuMemcpyDtoA_v2(second, 0, memory, 64));
	CHECK(cuMemcpyAtoHAsync_v2(back, second, 0, 64, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(back[0] == 7 && back[15] == 7);
	CHECK(cuMemcpyHtoAAsync_v2(second, 0, here, 64, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemcpyAtoH_v2(back, second, 0, 64));
	REQUIRE(!memcmp(here, back, 64));
	EXPECT(cuMemcpyHtoA_v2(first, 32, here, 64), CUDA_ERROR_INVALID_VALUE);
	rows.srcHost = here + 16;
	rows.dstArray = second;
	CHECK(cuMemcpy2D_v2(&rows));
	CHECK(cuMemcpyAtoH_v2(back, second, 0, 64));
	REQUIRE_EQUAL(back[3], 119);

	CHECK(cuArray3DCreate_v2(&cube, &solid));
	CHECK(cuArray3DGetDescriptor_v2(&solid_told, cube));
	REQUIRE(solid_told.Depth == 4 && solid_told.Flags == CUDA_ARRAY3D_SURFACE_LDST);
	box.srcHost = here;
	box.dstArray = cube;
	CHECK(cuMemcpy3D_v2(&box));
	box = (CUDA_MEMCPY3D){ .srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = cube, .srcXInBytes = 4,
			       .srcY = 1, .srcZ = 2, .dstMemoryType = CU_MEMORYTYPE_HOST,
			       .dstHost = back, .dstPitch = 8, .dstHeight = 2, .WidthInBytes = 8,
			       .Height = 2, .Depth = 2 };
	CHECK(cuMemcpy3D_v2(&box));
	REQUIRE(back[0] == 100 + 32 + 4 + 1 && back[7] == 100 + 48 + 8 + 2);

	resource.res.array.hArray = first;
	CHECK(cuTexObjectCreate(&seen, &resource, &texture, NULL));
	CHECK(cuTexObjectGetResourceDesc(&resource_told, seen));
	REQUIRE(resource_told.res.array.hArray == first);
	CHECK(cuTexObjectGetTextureDesc(&texture_told, seen));
	REQUIRE_EQUAL(texture_told.flags & CU_TRSF_READ_AS_INTEGER, CU_TRSF_READ_AS_INTEGER);
	CHECK(cuTexObjectDestroy(seen));
	EXPECT(cuTexObjectGetTextureDesc(&texture_told, seen), CUDA_ERROR_INVALID_VALUE);
	resource.res.array.hArray = cube;
	CHECK(cuSurfObjectCreate(&written, &resource));
	CHECK(cuSurfObjectGetResourceDesc(&resource_told, written));
	REQUIRE(resource_told.res.array.hArray == cube);
	CHECK(cuSurfObjectDestroy(written));
	CHECK(cuArrayDestroy(cube));
	CHECK(cuArrayDestroy(first));
	EXPECT(cuArrayDestroy(first), CUDA_ERROR_INVALID_HANDLE);
	return 0;
}
