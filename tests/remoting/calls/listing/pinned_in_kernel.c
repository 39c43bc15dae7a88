/* A kernel is given the address of pinned memory, as where unified addressing maps all of it. */
#include "../calls.h"

int main(int argc, char **argv)
{
	CUdeviceptr address = 16;
	unsigned value = 1;
	void *parameters[] = { &address, &value };
	void *pinned;

	(void)argv;
	begin();
	if (argc > 1) {
		CHECK(cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE));
		address = (CUdeviceptr)(uintptr_t)pinned;
	}
	CHECK(cuLaunchKernel(store_kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	printf("ok\n");
	return 0;
}
