/* What can't be allocated and what can't be freed. */
#include "driver.h"

int main(void)
{
	CUdeviceptr memory, base;
	unsigned flags;
	size_t size, pitch;
	int local;
	void *host;

	begin();
	EXPECT(cuMemAlloc(&memory, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAlloc(NULL, 4), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemAlloc(&memory, 1000));
	REQUIRE_EQUAL(memory % 512, 0);
	CHECK(cuMemGetAddressRange(&base, &size, memory + 999));
	REQUIRE(base == memory);
	REQUIRE_EQUAL(size, 1000);
	EXPECT(cuMemGetAddressRange(&base, &size, memory + 1000), CUDA_ERROR_NOT_FOUND);
	EXPECT(cuMemFree(memory + 4), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFree(memory));
	EXPECT(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFree(0));
	EXPECT(cuMemAllocPitch(&memory, &pitch, 100, 10, 3), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemAllocPitch(&memory, &pitch, 1000, 10, 4));
	REQUIRE_EQUAL(pitch, 1024);
	EXPECT(cuMemAllocManaged(&memory, 4, 0), CUDA_ERROR_INVALID_VALUE);

	EXPECT(cuMemHostAlloc(&host, 4, 0x80), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemHostAlloc(&host, 4, CU_MEMHOSTALLOC_WRITECOMBINED));
	CHECK(cuMemHostGetFlags(&flags, host));
	REQUIRE_EQUAL(flags, CU_MEMHOSTALLOC_WRITECOMBINED);
	EXPECT(cuMemFree((CUdeviceptr)(uintptr_t)host), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFreeHost(host));
	EXPECT(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemHostUnregister(&local), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	CHECK(cuMemHostRegister(&local, sizeof local, 0));
	EXPECT(cuMemHostRegister(&local, sizeof local, 0),
	       CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	EXPECT(cuMemHostUnregister((char *)&local + 1), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemHostUnregister(&local));
	return 0;
}
