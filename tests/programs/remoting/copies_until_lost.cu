// Eight threads copy to their stacks and to pinned memory until the connection is lost:
// each hears of it (exit status 3).
#include "check.h"

#include <atomic>
#include <thread>
#include <vector>

static std::atomic<int> started;

static void work(char *device, bool pinned)
{
	const size_t bytes = 1 << 18;
	char stack[bytes], *host = stack;
	if (pinned)
		CUDA(cudaMallocHost((void **)&host, bytes));
	for (bool first = true;; first = false) {
		cudaError_t error = cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread);
		if (error == cudaSuccess)
			error = cudaStreamSynchronize(cudaStreamPerThread);
		if (error == cudaErrorDevicesUnavailable)
			return;
		CUDA(error);
		if (first && ++started == 8) {
			std::printf("waiting\n");
			std::fflush(stdout);
		}
	}
}

int main()
{
	char *device;
	std::vector<std::thread> threads;
	CUDA(cudaMalloc(&device, 1 << 18));
	for (int i = 0; i < 8; i++)
		threads.emplace_back(work, device, i % 2);
	for (auto &thread : threads)
		thread.join();
	return 3;
}
