// Four streams copy in, compute and copy out of pinned memory independently.
#include "check.h"

__global__ void square(int *data, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		data[i] = data[i] * data[i];
}

int main()
{
	const int count = 300000, streams = 4;
	cudaStream_t stream[streams];
	int *host[streams], *device[streams];
	for (int s = 0; s < streams; s++) {
		CUDA(cudaStreamCreateWithFlags(&stream[s], cudaStreamNonBlocking));
		CUDA(cudaMallocHost(&host[s], count * sizeof(int)));
		CUDA(cudaMalloc(&device[s], count * sizeof(int)));
		for (int i = 0; i < count; i++)
			host[s][i] = (i + s) % 1000;
	}
	for (int round = 0; round < 3; round++)
		for (int s = 0; s < streams; s++) {
			if (round)
				continue;
			CUDA(cudaMemcpyAsync(device[s], host[s], count * sizeof(int), cudaMemcpyHostToDevice, stream[s]));
			square<<<(count + 255) / 256, 256, 0, stream[s]>>>(device[s], count);
			CUDA(cudaGetLastError());
			CUDA(cudaMemcpyAsync(host[s], device[s], count * sizeof(int), cudaMemcpyDeviceToHost, stream[s]));
		}
	for (int s = 0; s < streams; s++) {
		CUDA(cudaStreamSynchronize(stream[s]));
		for (int i = 0; i < count; i++)
			if (host[s][i] != ((i + s) % 1000) * ((i + s) % 1000))
				FAIL("stream %d, element %d is %d", s, i, host[s][i]);
		CUDA(cudaFreeHost(host[s]));
		CUDA(cudaFree(device[s]));
		CUDA(cudaStreamDestroy(stream[s]));
	}
	return passed();
}
