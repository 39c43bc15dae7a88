// Far more work than a driver queues, posted behind a host function, gets done.
#include "check.h"

#include <chrono>
#include <thread>

__global__ void increment(unsigned *value)
{
	++*value;
}

static void slow(void *)
{
	std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

int main()
{
	unsigned *device, host = 0;
	cudaStream_t stream;
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMalloc(&device, sizeof(unsigned)));
	CUDA(cudaMemsetAsync(device, 0, sizeof(unsigned), stream));
	for (int round = 0; round < 3; round++) {
		CUDA(cudaLaunchHostFunc(stream, slow, nullptr));
		for (int i = 0; i < 3000; i++)
			increment<<<1, 1, 0, stream>>>(device);
	}
	CUDA(cudaStreamSynchronize(stream));
	CUDA(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
	if (host != 9000)
		FAIL("%u instead of 9000", host);
	return passed();
}
