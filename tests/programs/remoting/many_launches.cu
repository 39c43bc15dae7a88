// Launches that nobody waits for all happen, in order.
#include "check.h"

__global__ void step(unsigned *state, unsigned number)
{
	*state = *state * 1664525u + number;
}

int main()
{
	unsigned *device, host = 0, wanted = 0;
	CUDA(cudaMalloc(&device, sizeof(unsigned)));
	CUDA(cudaMemset(device, 0, sizeof(unsigned)));
	for (unsigned i = 0; i < 5000; i++) {
		step<<<1, 1>>>(device, i);
		wanted = wanted * 1664525u + i;
	}
	CUDA(cudaGetLastError());
	CUDA(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
	if (host != wanted)
		FAIL("%u instead of %u", host, wanted);
	return passed();
}
