// 64 threads over both servers, each with its own stream, each copying to the other side.
#include "two.h"

#include <atomic>
#include <thread>

static const int THREADS = 64, ROUNDS = 6, COUNT = 20000;
static std::atomic<int> wrong;

static void work(int number)
{
	const int device = number % 2, bytes = COUNT * (int)sizeof(int);
	int *here = allocate_on(device, COUNT), *there = allocate_on(1 - device, COUNT), *pinned;
	cudaStream_t stream, other;
	cudaEvent_t event;

	CUDA(cudaStreamCreate(&other));
	CUDA(cudaSetDevice(device));
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	CUDA(cudaMallocHost((void **)&pinned, bytes));
	for (int round = 0; round < ROUNDS; round++) {
		const int seed = 1000 * number + round;

		fill_with<<<8, 64, 0, stream>>>(here, COUNT, seed);
		CUDA(cudaMemcpyPeerAsync(there, 1 - device, here, device, bytes, stream));
		CUDA(cudaEventRecord(event, stream));
		CUDA(cudaStreamWaitEvent(other, event, 0));
		CUDA(cudaMemcpyAsync(pinned, there, bytes, cudaMemcpyDeviceToHost, other));
		CUDA(cudaStreamSynchronize(other));
		for (int i = 0; i < COUNT; i++)
			wrong += pinned[i] != seed + 3 * i;
	}
	CUDA(cudaFreeHost(pinned));
	CUDA(cudaFree(here));
	CUDA(cudaFree(there));
	CUDA(cudaStreamDestroy(stream));
	CUDA(cudaStreamDestroy(other));
	CUDA(cudaEventDestroy(event));
}

int main()
{
	std::vector<std::thread> threads;

	for (int i = 0; i < THREADS; i++)
		threads.emplace_back(work, i);
	for (std::thread &thread : threads)
		thread.join();
	EXPECT(wrong == 0);
	return passed();
}
