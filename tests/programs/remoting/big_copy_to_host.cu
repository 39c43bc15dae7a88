// An asynchronous copy of more than 1 GiB to pinned memory behind a kernel that takes
// its time: more pieces are under way than the server has buffers for.
#include "check.h"

static __global__ void count(unsigned *value, int rounds)
{
	for (int i = 0; i < rounds; i++)
		*value += i & 1;
}

int main()
{
	const size_t bytes = (1100ull << 20) + 12;
	unsigned char *device, *host;
	cudaStream_t stream;

	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMalloc(&device, bytes));
	CUDA(cudaMallocHost(&host, bytes));
	CUDA(cudaMemsetAsync(device, 0x5a, bytes, stream));
	CUDA(cudaMemsetAsync(device, 0, 4, stream));
	count<<<1, 1, 0, stream>>>((unsigned *)device, 20000000);
	CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
	CUDA(cudaStreamSynchronize(stream));
	EXPECT(*(unsigned *)host == 10000000);
	for (size_t i = 4; i < bytes; i += 1 << 20)
		EXPECT(host[i] == 0x5a);
	EXPECT(host[bytes - 1] == 0x5a);
	return passed();
}
