/* Copies and fills that leave their allocation are refused, at the call. */
#include "driver.h"

int main(void)
{
	char host[64] = { 0 };
	CUdeviceptr memory, other;

	begin();
	CHECK(cuMemAlloc(&memory, 64));
	CHECK(cuMemAlloc(&other, 32));
	EXPECT(cuMemcpyHtoD(memory + 1, host, 64), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyDtoH(host, memory, 65), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyDtoD(memory, other, 33), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyHtoD((CUdeviceptr)(uintptr_t)host, host, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyHtoD(memory, NULL, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemsetD8(memory, 0, 65), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemsetD32(memory + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemsetD32(memory, 0, (size_t)-1 / 2), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemcpyHtoD(memory, host, 0));
	CHECK(cuMemcpyHtoD(memory, host, 64));
	CHECK(cuMemcpy(memory, (CUdeviceptr)(uintptr_t)host, 64));
	return 0;
}
