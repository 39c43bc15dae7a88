// A thread that waits for a stream does not keep another from working: the stream
// waits until the other thread has finished its own work.
#include "check.h"

#include <atomic>
#include <thread>

static std::atomic<bool> open_gate{false};

static void gate(void *)
{
	while (!open_gate)
		std::this_thread::yield();
}

int main()
{
	cudaStream_t blocked, working;
	int *data, result = 0;
	CUDA(cudaStreamCreateWithFlags(&blocked, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&working, cudaStreamNonBlocking));
	CUDA(cudaMalloc(&data, sizeof(int)));
	CUDA(cudaLaunchHostFunc(blocked, gate, nullptr));
	std::thread waiter([&] { CUDA(cudaStreamSynchronize(blocked)); });
	EXPECT_ERROR(cudaStreamQuery(blocked), cudaErrorNotReady);
	CUDA(cudaMemsetAsync(data, 1, sizeof(int), working));
	CUDA(cudaMemcpyAsync(&result, data, sizeof(int), cudaMemcpyDeviceToHost, working));
	CUDA(cudaStreamSynchronize(working));
	EXPECT(result == 0x01010101);
	open_gate = true;
	waiter.join();
	CUDA(cudaStreamQuery(blocked));
	return passed();
}
