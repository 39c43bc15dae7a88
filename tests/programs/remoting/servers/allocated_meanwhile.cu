// Memory is allocated and freed on a device while another server's bytes are on their way to it.
#include "two.h"

int main()
{
	const int count = 1 << 20, rounds = 10;
	int *from = allocate_on(0, count), *to = allocate_on(1, count);
	cudaStream_t stream;

	CUDA(cudaStreamCreate(&stream));
	for (int round = 0; round < rounds; round++) {
		void *more;

		CUDA(cudaSetDevice(0));
		fill_with<<<8, 64>>>(from, count, round);
		CUDA(cudaDeviceSynchronize());
		CUDA(cudaSetDevice(1));
		CUDA(cudaMemcpyPeerAsync(to, 1, from, 0, count * sizeof(int), stream));
		CUDA(cudaMalloc(&more, 1 << 20));
		CUDA(cudaFree(more));
		CUDA(cudaStreamSynchronize(stream));
		expect_filled(read_back(to, count), round);
	}
	return passed();
}
