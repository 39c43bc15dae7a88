// A copy that waits reports the fault of the kernel before it.
#include "check.h"

__global__ void trap()
{
	asm("trap;");
}

int main()
{
	int *device, host;
	CUDA(cudaMalloc(&device, sizeof(int)));
	trap<<<1, 1>>>();
	const cudaError_t error = cudaMemcpy(&host, device, sizeof(int), cudaMemcpyDeviceToHost);
	EXPECT(error == cudaErrorLaunchFailure || error == cudaErrorIllegalInstruction);
	EXPECT(cudaDeviceSynchronize() == error);
	return passed();
}
