/* The primary context is active from the first retain to the last release. */
#include "driver.h"

int main(void)
{
	CUcontext first, second;
	CUdeviceptr word;
	unsigned flags;
	int active;

	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	REQUIRE(!active);
	EXPECT(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
	CHECK(cuDevicePrimaryCtxRetain(&first, 0));
	CHECK(cuDevicePrimaryCtxRetain(&second, 0));
	REQUIRE(first == second);
	CHECK(cuCtxSetCurrent(first));
	CHECK(cuMemAlloc(&word, 4));
	CHECK(cuDevicePrimaryCtxRelease(0));
	CHECK(cuMemsetD32(word, 1, 1));
	CHECK(cuDevicePrimaryCtxRelease(0));
	CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	REQUIRE(!active);
	EXPECT(cuMemsetD32(word, 1, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	return 0;
}
