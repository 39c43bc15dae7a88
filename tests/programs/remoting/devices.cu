// Every device of the session works by itself, and copies between them arrive.
#include "check.h"

__global__ void put(int *to, int value)
{
	*to = value;
}

int main()
{
	int count = 0, result = 0;
	int *data[16];
	CUDA(cudaGetDeviceCount(&count));
	EXPECT(count >= 1 && count <= 16);
	for (int i = 0; i < count; i++) {
		CUDA(cudaSetDevice(i));
		CUDA(cudaMalloc(&data[i], sizeof(int)));
		put<<<1, 1>>>(data[i], 100 + i);
	}
	for (int i = 0; i < count; i++) {
		cudaPointerAttributes attributes;
		CUDA(cudaPointerGetAttributes(&attributes, data[i]));
		EXPECT(attributes.device == i);
		CUDA(cudaSetDevice(i));
		CUDA(cudaDeviceSynchronize());
		CUDA(cudaMemcpy(&result, data[i], sizeof result, cudaMemcpyDefault));
		EXPECT(result == 100 + i);
	}
	CUDA(cudaMemcpyPeer(data[0], 0, data[count - 1], count - 1, sizeof(int)));
	CUDA(cudaDeviceSynchronize());
	CUDA(cudaMemcpy(&result, data[0], sizeof result, cudaMemcpyDeviceToHost));
	EXPECT(result == 100 + count - 1);
	std::printf("%d\n", count);
	return passed();
}
