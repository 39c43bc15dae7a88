// A copy whose bytes do not come is an error, not what was in their place.
#include "check.h"

int main()
{
	char mine[65] = "ZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ", back[64] = {};
	void *plain;

	CUDA(cudaMalloc(&plain, sizeof(back)));
	CUDA(cudaMemcpy(plain, mine, sizeof(back), cudaMemcpyHostToDevice));
	EXPECT_ERROR(cudaMemcpy(back, plain, sizeof(back), cudaMemcpyDeviceToHost), cudaErrorDevicesUnavailable);
	EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorDevicesUnavailable);
	return passed();
}
