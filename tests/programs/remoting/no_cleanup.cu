// Ends with work under way and nothing freed.
#include "check.h"

__global__ void work(int *data)
{
	for (int i = 0; i < 1000; i++)
		data[threadIdx.x] += i;
}

int main()
{
	int *data, *pinned;
	cudaStream_t stream;
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMalloc(&data, 4096));
	CUDA(cudaMallocHost(&pinned, 4096));
	for (int i = 0; i < 100; i++)
		work<<<1, 128, 0, stream>>>(data);
	CUDA(cudaMemcpyAsync(pinned, data, 4096, cudaMemcpyDeviceToHost, stream));
	return passed();
}
