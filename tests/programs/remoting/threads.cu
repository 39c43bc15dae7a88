// flags: --default-stream per-thread
// Threads work in their own default streams, allocate, launch and free.
#include "check.h"

#include <thread>
#include <vector>

__global__ void add(int *data, int count, int value)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		data[i] += value;
}

static void work(int number)
{
	const int count = 5000;
	std::vector<int> host(count, number);
	int *device;
	for (int round = 0; round < 5; round++) {
		CUDA(cudaMalloc(&device, count * sizeof(int)));
		CUDA(cudaMemcpy(device, host.data(), count * sizeof(int), cudaMemcpyHostToDevice));
		for (int i = 0; i < 10; i++)
			add<<<(count + 127) / 128, 128>>>(device, count, 1);
		CUDA(cudaMemcpyAsync(host.data(), device, count * sizeof(int), cudaMemcpyDeviceToHost));
		CUDA(cudaStreamSynchronize(cudaStreamPerThread));
		CUDA(cudaFree(device));
	}
	for (int i = 0; i < count; i++)
		if (host[i] != number + 50)
			FAIL("thread %d, element %d is %d", number, i, host[i]);
}

int main()
{
	std::vector<std::thread> threads;
	for (int i = 0; i < 16; i++)
		threads.emplace_back(work, i);
	for (auto &thread : threads)
		thread.join();
	return passed();
}
