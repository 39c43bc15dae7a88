// What a context had pinned goes with it at the server; here it is memory still, until it is freed,
// and copies from it and to it go on in the next context.
#include "check.h"

#include <cstring>

int main()
{
	const size_t bytes = 1 << 20;
	unsigned char *pinned, *fresh, *device;
	CUDA(cudaMallocHost(&pinned, bytes));
	std::memset(pinned, 11, bytes);
	CUDA(cudaDeviceReset());
	CUDA(cudaMalloc(&device, bytes));
	CUDA(cudaMallocHost(&fresh, bytes));
	CUDA(cudaMemcpy(device, pinned, bytes, cudaMemcpyHostToDevice));
	std::memset(pinned, 0, bytes);
	CUDA(cudaMemcpy(pinned, device, bytes, cudaMemcpyDeviceToHost));
	CUDA(cudaMemcpy(fresh, device, bytes, cudaMemcpyDeviceToHost));
	EXPECT(pinned[0] == 11 && std::memcmp(pinned, fresh, bytes) == 0);
	CUDA(cudaFreeHost(pinned));
	CUDA(cudaFreeHost(fresh));
	return passed();
}
