// cudaDeviceReset takes everything with it; the device can be used again.
#include "check.h"

__device__ int variable = 3;

__global__ void read(int *to)
{
	*to = variable++;
}

int main()
{
	for (int round = 0; round < 3; round++) {
		int *device, host = 0;
		CUDA(cudaMalloc(&device, sizeof(int)));
		read<<<1, 1>>>(device);
		CUDA(cudaMemcpy(&host, device, sizeof(int), cudaMemcpyDeviceToHost));
		EXPECT(host == 3);
		CUDA(cudaDeviceReset());
		EXPECT_ERROR(cudaFree(device), cudaErrorInvalidValue);
		cudaGetLastError();
	}
	return passed();
}
