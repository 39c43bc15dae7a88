/* softgpu: strict=1
 * In strict mode memory ends where it was asked to end, to 512 bytes. */
#include "driver.h"

int main(void)
{
	CUfunction store;
	CUdeviceptr memory;

	begin();
	store = kernel("store");
	CHECK(cuMemAlloc(&memory, 512));
	CHECK(launch_store(store, memory + 508, 1, NULL));
	CHECK(cuCtxSynchronize());
	CHECK(launch_store(store, memory + 512, 1, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}
