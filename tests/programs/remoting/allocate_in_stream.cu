// Allocation and release in stream order.
#include "check.h"

__global__ void put(int *to, int value)
{
	*to = value;
}

int main()
{
	cudaStream_t stream;
	int result = 0;
	CUDA(cudaStreamCreate(&stream));
	for (int round = 0; round < 50; round++) {
		int *data;
		CUDA(cudaMallocAsync(&data, 1 << 16, stream));
		put<<<1, 1, 0, stream>>>(data, round);
		CUDA(cudaMemcpyAsync(&result, data, sizeof result, cudaMemcpyDeviceToHost, stream));
		CUDA(cudaFreeAsync(data, stream));
		EXPECT(result == round);
	}
	CUDA(cudaStreamSynchronize(stream));
	return passed();
}
