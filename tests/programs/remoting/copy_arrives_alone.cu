// An asynchronous copy to pinned memory arrives without any further CUDA call.
#include "check.h"

#include <chrono>
#include <thread>

int main()
{
	const int count = 1 << 20;
	int *device;
	volatile int *host;
	CUDA(cudaMalloc(&device, count * sizeof(int)));
	CUDA(cudaMemset(device, 0x5a, count * sizeof(int)));
	CUDA(cudaMallocHost((void **)&host, count * sizeof(int)));
	for (int i = 0; i < count; i++)
		host[i] = 0;
	CUDA(cudaMemcpyAsync((void *)host, device, count * sizeof(int), cudaMemcpyDeviceToHost));
	const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
	// In whatever order: a copy promises none for its own bytes.
	for (int i = 0; i < count; i++)
		while (host[i] != 0x5a5a5a5a)
			if (std::chrono::steady_clock::now() > end)
				FAIL("element %d has not come: %x", i, host[i]);
			else
				std::this_thread::yield();
	return passed();
}
