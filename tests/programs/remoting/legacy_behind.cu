// Copies in the legacy stream come behind the kernels of all streams that it waits for.
#include "check.h"

__global__ void count_up(int *to, int rounds)
{
	volatile int *value = to;

	for (int i = 0; i < rounds; i++)
		*value = *value + 1;
}

int main()
{
	const int rounds = 20000;
	cudaStream_t streams[20];	// more than a server asks about one by one
	int *value, have = 0;

	CUDA(cudaMalloc(&value, sizeof(int)));
	for (int n = 0; n < 20; n++) {
		CUDA(cudaStreamCreate(&streams[n]));
		for (int i = 0; i < 3; i++) {
			CUDA(cudaMemcpy(value, &i, sizeof(int), cudaMemcpyHostToDevice));
			count_up<<<1, 1, 0, streams[n / 2]>>>(value, rounds);
			CUDA(cudaMemcpy(&have, value, sizeof(int), cudaMemcpyDeviceToHost));
			EXPECT(have == i + rounds);
			count_up<<<1, 1, 0, streams[n]>>>(value, rounds);
			CUDA(cudaStreamSynchronize(cudaStreamLegacy));
			CUDA(cudaMemcpyAsync(&have, value, sizeof(int), cudaMemcpyDeviceToHost, cudaStreamLegacy));
			CUDA(cudaDeviceSynchronize());
			EXPECT(have == i + 2 * rounds);
		}
	}
	return passed();
}
