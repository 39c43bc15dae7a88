// A kernel's fault is reported by the next call that waits, and by all after it.
#include "check.h"

__global__ void fault(int *data)
{
	data[threadIdx.x] = 1;
}

int main()
{
	int *device, host;
	CUDA(cudaMalloc(&device, sizeof(int)));
	fault<<<1, 1>>>((int *)16);
	CUDA(cudaGetLastError());
	EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
	EXPECT_ERROR(cudaMalloc(&device, sizeof(int)), cudaErrorIllegalAddress);
	EXPECT_ERROR(cudaMemcpy(&host, device, sizeof(int), cudaMemcpyDeviceToHost), cudaErrorIllegalAddress);
	fault<<<1, 1>>>(device);
	EXPECT_ERROR(cudaGetLastError(), cudaErrorIllegalAddress);
	return passed();
}
