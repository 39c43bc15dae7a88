/* Says "waiting"; when the second server has gone, posts copies from it while the first one's device is
 * current: none leaves anything behind. */
#include "../calls.h"

#include <malloc.h>

enum { COPIES = 10000 };

int main(void)
{
	CUcontext contexts[2];
	CUdeviceptr memory;
	CUstream stream;
	void *pinned;
	size_t before;

	CHECK(cuInit(0));
	for (int i = 1; i >= 0; i--) {
		CHECK(cuDevicePrimaryCtxRetain(&contexts[i], i));
		CHECK(cuCtxSetCurrent(contexts[i]));
		if (i == 0)
			break;
		CHECK(cuMemAlloc_v2(&memory, 64));
		CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	}
	CHECK(cuMemAllocHost_v2(&pinned, 64));
	printf("waiting\n");
	fflush(stdout);
	getchar();
	while (cuMemcpyDtoHAsync_v2(pinned, memory, 64, stream) == CUDA_SUCCESS)
		;
	before = mallinfo2().uordblks;
	for (int i = 0; i < COPIES; i++)
		EXPECT(cuMemcpyDtoHAsync_v2(pinned, memory, 64, stream), CUDA_ERROR_DEVICE_UNAVAILABLE);
	REQUIRE(mallinfo2().uordblks < before + COPIES);
	CHECK(cuCtxSynchronize());
	printf("ok\n");
	return 0;
}
