/* Calls at the edges: what they answer to nothing, and what is destroyed after an error is destroyed all the
 * same, though the call tells of the error. */
#include "calls.h"

static void nothing(void)
{
	size_t available = 0, all = 0, again = 0;

	CHECK(cuMemGetInfo_v2(&available, &all));
	REQUIRE(all && available <= all);
	CHECK(cuMemGetInfo_v2(NULL, &again));
	REQUIRE_EQUAL(again, all);
	CHECK(cuMemGetInfo_v2(NULL, NULL));
	CHECK(cuMemFree_v2(0));
	CHECK(cuMemFreeHost(NULL));
	EXPECT(cuMemHostUnregister(NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFreeAsync(0, NULL));
}

int main(void)
{
	CUdeviceptr nowhere = 16;
	unsigned value = 1;
	void *parameters[] = { &nowhere, &value };
	CUstream stream;
	CUevent event;

	begin();
	nothing();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	CHECK(cuLaunchKernel(store_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemGetInfo_v2(NULL, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemFree_v2(0), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuEventDestroy_v2(event), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuEventDestroy_v2(event), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamDestroy_v2(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
	printf("ok\n");
	return 0;
}
