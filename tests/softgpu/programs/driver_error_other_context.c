/* A fault breaks its context and no other. */
#include "driver.h"

int main(void)
{
	CUcontext broken, sound;
	CUfunction store;
	CUdeviceptr word;
	CUmodule module;

	CHECK(cuInit(0));
	CHECK(cuCtxCreate(&sound, 0, 0));
	CHECK(cuMemAlloc(&word, 4));
	CHECK(cuCtxCreate(&broken, 0, 0));
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&store, module, "store"));
	CHECK(launch_store(store, 0, 1, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(cuCtxDestroy(broken));
	CHECK(cuCtxGetCurrent(&broken));
	REQUIRE(broken == sound);
	CHECK(cuMemsetD32(word, 1, 1));
	CHECK(cuCtxSynchronize());
	return 0;
}
