/* What CUDA 2 had: contexts, arrays and launches by its functions. */
#include "calls.h"

static void test_launch(void)
{
	CUdeviceptr word = words(1, 0);
	CUfunction store = store_kernel();
	float half = 0.5f;
	CUstream stream;
	unsigned bits;

	CHECK(cuFuncSetBlockShape(store, 1, 1, 1));
	CHECK(cuFuncSetSharedSize(store, 0));
	CHECK(cuParamSetSize(store, 12));
	CHECK(cuParamSetv(store, 0, &word, 8));
	CHECK(cuParamSeti(store, 8, 31));
	CHECK(cuLaunch(store));
	REQUIRE_EQUAL(word_at(word), 31);
	CHECK(cuParamSetf(store, 8, half));
	CHECK(cuLaunchGrid(store, 2, 1));
	bits = word_at(word);
	REQUIRE(!memcmp(&bits, &half, 4));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuParamSeti(store, 8, 32));
	CHECK(cuLaunchGridAsync(store, 1, 1, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(word), 32);
	CHECK(cuStreamDestroy(stream));
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuParamSetv(store, 4090, &word, 8), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFree_v2(word));
}

static void test_arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR_v1 line = { .Width = 16, .Format = CU_AD_FORMAT_UNSIGNED_INT32,
					  .NumChannels = 1 }, line_told;
	CUDA_ARRAY3D_DESCRIPTOR_v1 solid = { .Width = 4, .Height = 3, .Depth = 2,
					     .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1 }, solid_told;
	unsigned here[16], back[16] = { 0 };
	CUarray first, second, cube;

	for (unsigned i = 0; i < 16; i++)
		here[i] = i * i;
	CHECK(cuArrayCreate(&first, &line));
	CHECK(cuArrayCreate(&second, &line));
	CHECK(cuArrayGetDescriptor(&line_told, first));
	REQUIRE(line_told.Width == 16 && line_told.NumChannels == 1);
	CHECK(cuArray3DCreate(&cube, &solid));
	CHECK(cuArray3DGetDescriptor(&solid_told, cube));
	REQUIRE(solid_told.Width == 4 && solid_told.Height == 3 && solid_told.Depth == 2);
	CHECK(cuMemcpyHtoA(first, 0, here, 64));
	CHECK(cuMemcpyAtoA(second, 0, first, 8, 16));
	CHECK(cuMemcpyAtoH(back, second, 0, 16));
	REQUIRE(back[0] == 4 && back[3] == 25);
	CHECK(cuMemcpyHtoAAsync(second, 0, here, 64, CU_STREAM_LEGACY));
	CHECK(cuMemcpyAtoHAsync(back, second, 0, 64, CU_STREAM_LEGACY));
	CHECK(cuCtxSynchronize());
	REQUIRE(!memcmp(here, back, 64));
	CHECK(cuArrayDestroy(cube));
}

int main(void)
{
	CUcontext primary = begin(), made, now;
	unsigned total, free_bytes, all;
	CUevent event;
	void *pinned;

	CHECK(cuDeviceTotalMem(&total, 0));
	CHECK(cuMemGetInfo(&free_bytes, &all));
	REQUIRE(total == all && free_bytes <= all && all > 0);
	CHECK(cuMemAllocHost(&pinned, 64));
	memset(pinned, 1, 64);
	CHECK(cuMemFreeHost(pinned));
	CHECK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	CHECK(cuEventDestroy(event));
	EXPECT(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuCtxCreate(&made, 0, 0));
	CHECK(cuCtxPopCurrent(&now));
	REQUIRE(now == made);
	CHECK(cuCtxPushCurrent(made));
	CHECK(cuCtxGetCurrent(&now));
	REQUIRE(now == made);
	CHECK(cuCtxSetCurrent(primary));
	CHECK(cuCtxDestroy(made));
	EXPECT(cuCtxDestroy(made), CUDA_ERROR_INVALID_CONTEXT);
	test_launch();
	test_arrays();
	return 0;
}
