/* A little beyond an allocation is accessible, as on a real GPU, whose pages
 * are large; far away is not. */
#include "driver.h"

int main(void)
{
	CUfunction store;
	CUdeviceptr memory;

	begin();
	store = kernel("store");
	CHECK(cuMemAlloc(&memory, 4ul << 20));
	CHECK(launch_store(store, memory + (4ul << 20) + 4096, 1, NULL));
	CHECK(launch_store(store, memory - 4096, 1, NULL));
	CHECK(cuCtxSynchronize());
	CHECK(launch_store(store, memory + (64ul << 20), 1, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}
