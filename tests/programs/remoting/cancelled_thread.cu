// A thread that is cancelled while it waits for the GPU takes no other thread with it:
// a CUDA call is no cancellation point.
#include "check.h"

#include <atomic>
#include <pthread.h>

static std::atomic<bool> open_gate{false};
static std::atomic<int> waiting{0};
static cudaStream_t stream;

static void gate(void *)
{
	while (!open_gate)
		;
}

static void *wait_for_stream(void *)
{
	CUDA(cudaSetDevice(0));
	waiting++;
	CUDA(cudaStreamSynchronize(stream));
	return nullptr;
}

int main()
{
	int *device, value = 0;
	pthread_t thread;

	CUDA(cudaMalloc(&device, sizeof(int)));
	for (int i = 0; i < 20; i++) {
		CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
		open_gate = false;
		waiting = 0;
		CUDA(cudaLaunchHostFunc(stream, gate, nullptr));
		EXPECT(pthread_create(&thread, nullptr, wait_for_stream, nullptr) == 0);
		while (!waiting)
			;
		EXPECT_ERROR(cudaStreamQuery(stream), cudaErrorNotReady);
		EXPECT(pthread_cancel(thread) == 0);
		EXPECT_ERROR(cudaStreamQuery(stream), cudaErrorNotReady);
		open_gate = true;
		EXPECT(pthread_join(thread, nullptr) == 0);
		CUDA(cudaMemcpy(device, &i, sizeof(int), cudaMemcpyHostToDevice));
		CUDA(cudaMemcpy(&value, device, sizeof(int), cudaMemcpyDeviceToHost));
		EXPECT(value == i);
		CUDA(cudaStreamDestroy(stream));
	}
	return passed();
}
