// Few bytes at a time to the host: where nothing is ahead of a copy, and behind a kernel.
#include "check.h"

#define COPIES 50u

__global__ void set(unsigned *value, unsigned to)
{
	*value = to;
}

int main()
{
	unsigned *on_device, seen;

	CUDA(cudaMalloc(&on_device, sizeof(seen)));
	for (unsigned i = 0; i < COPIES; i++) {
		set<<<1, 1>>>(on_device, i);
		CUDA(cudaMemcpy(&seen, on_device, sizeof(seen), cudaMemcpyDeviceToHost));
		EXPECT(seen == i);
		seen = COPIES;
		CUDA(cudaMemcpy(&seen, on_device, sizeof(seen), cudaMemcpyDeviceToHost));
		EXPECT(seen == i);
	}
	return passed();
}
