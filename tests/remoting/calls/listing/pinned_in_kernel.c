/* A kernel is given the address of pinned memory, as where unified addressing maps all of it: 4 KiB, or so many. */
#include "../calls.h"

int main(int argc, char **argv)
{
	CUdeviceptr address = 16;
	unsigned value = 1;
	void *parameters[] = { &address, &value };
	void *pinned;

	begin();
	if (argc > 1) {
		CHECK(cuMemHostAlloc(&pinned, argc > 2 ? strtoul(argv[2], NULL, 10) << 10 : 4096, CU_MEMHOSTALLOC_PORTABLE));
		address = (CUdeviceptr)(uintptr_t)pinned;
	}
	CHECK(cuLaunchKernel(store_kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	printf("ok\n");
	return 0;
}
