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
	host[count - 1] = 0;
	CUDA(cudaMemcpyAsync((void *)host, device, count * sizeof(int), cudaMemcpyDeviceToHost));
	const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
	while (host[count - 1] != 0x5a5a5a5a)
		if (std::chrono::steady_clock::now() > end)
			FAIL("the last element has not come");
		else
			std::this_thread::yield();
	for (int i = 0; i < count; i++)
		if (host[i] != 0x5a5a5a5a)
			FAIL("element %d is %x", i, host[i]);
	return passed();
}
