/* Pinned memory by its address, over shared memory: kernels write there what the program reads. */
#include "calls.h"

static void stored(unsigned *memory, unsigned value)
{
	CUdeviceptr inside = 0;

	CHECK(cuMemHostGetDevicePointer_v2(&inside, memory, 0));
	REQUIRE(inside);
	CHECK(cuLaunchKernel(store_kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){ &inside, &value }, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(*(volatile unsigned *)memory, value);
}

int main(void)
{
	CUdeviceptr first, inside;
	void *memory, *plain;

	begin();
	CHECK(cuMemHostAlloc(&memory, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	stored(memory, 41);
	stored((unsigned *)memory + 1000, 42);
	CHECK(cuMemHostGetDevicePointer_v2(&first, memory, 0));
	CHECK(cuMemHostGetDevicePointer_v2(&inside, (char *)memory + 100, 0));
	REQUIRE_EQUAL(inside, first + 100);
	CHECK(cuMemAllocHost_v2(&plain, 4096));
	stored(plain, 43);
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, memory, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemHostGetDevicePointer_v2(NULL, memory, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, &first, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFreeHost(memory));
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, memory, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFreeHost(plain));
	return 0;
}
