// A stream of one server waits for events of another, and nobody's call does.
#include "two.h"

#include <atomic>
#include <thread>

static std::atomic<bool> let_go;
static std::atomic<int> order;

static void held(void *)
{
	while (!let_go)
		std::this_thread::yield();
}

static void note(void *place)
{
	*(int *)place = ++order;
}

int main()
{
	const int count = 1 << 18;
	int *a = allocate_on(0, count), *b = allocate_on(1, count);
	int first = 0, second = 0;
	cudaStream_t at_a, at_b, other_b;
	cudaEvent_t ready, again, back, at_other;
	float milliseconds;

	CUDA(cudaSetDevice(0));
	CUDA(cudaStreamCreate(&at_a));
	CUDA(cudaEventCreate(&ready));
	CUDA(cudaEventCreateWithFlags(&again, cudaEventDisableTiming));
	// Code is loaded, and the thread's own stream made, at their first use, which may have to wait for a host function.
	fill_with<<<64, 64>>>(a, count, 40);
	CUDA(cudaEventRecord(again, cudaStreamPerThread));
	CUDA(cudaSetDevice(1));
	CUDA(cudaStreamCreate(&at_b));
	CUDA(cudaStreamCreate(&other_b));
	fill_with<<<64, 64>>>(b, count, 40);
	CUDA(cudaEventCreate(&back));
	CUDA(cudaEventCreateWithFlags(&at_other, cudaEventDisableTiming));

	// An event that was never recorded is waited for by nobody.
	CUDA(cudaStreamWaitEvent(at_b, ready, 0));
	CUDA(cudaStreamSynchronize(at_b));

	CUDA(cudaSetDevice(0));
	CUDA(cudaLaunchHostFunc(at_a, held, nullptr));
	fill_with<<<64, 64, 0, at_a>>>(a, count, 41);
	CUDA(cudaLaunchHostFunc(at_a, note, &first));
	CUDA(cudaEventRecord(ready, at_a));
	CUDA(cudaSetDevice(1));
	CUDA(cudaStreamWaitEvent(at_b, ready, 0));
	CUDA(cudaLaunchHostFunc(at_b, note, &second));
	CUDA(cudaMemcpyPeerAsync(b, 1, a, 0, count * sizeof(int), at_b));
	CUDA(cudaEventRecord(back, at_b));
	EXPECT(cudaStreamQuery(at_b) == cudaErrorNotReady);
	// Other streams of the server that waits go on, and so does what waits for another event.
	CUDA(cudaSetDevice(0));
	CUDA(cudaEventRecord(again, cudaStreamPerThread));
	CUDA(cudaSetDevice(1));
	CUDA(cudaStreamWaitEvent(other_b, again, 0));
	CUDA(cudaEventRecord(at_other, other_b));
	CUDA(cudaEventSynchronize(at_other));
	EXPECT(cudaEventQuery(ready) == cudaErrorNotReady);
	// And back: the first server's stream waits for what waits for it.
	CUDA(cudaSetDevice(0));
	CUDA(cudaStreamWaitEvent(at_a, back, 0));
	fill_with<<<64, 64, 0, at_a>>>(a, count, 42);
	let_go = true;
	CUDA(cudaStreamSynchronize(at_a));
	EXPECT(cudaEventQuery(back) == cudaSuccess);
	EXPECT(first == 1 && second == 2);
	expect_filled(read_back(b, count), 41);
	expect_filled(read_back(a, count), 42);

	// What is recorded later is not waited for.
	let_go = false;
	CUDA(cudaEventRecord(ready, at_a));
	CUDA(cudaStreamWaitEvent(at_b, ready, 0));
	CUDA(cudaLaunchHostFunc(at_a, held, nullptr));
	CUDA(cudaEventRecord(ready, at_a));
	CUDA(cudaStreamSynchronize(at_b));
	let_go = true;
	CUDA(cudaStreamSynchronize(at_a));

	// Times of two devices have nothing to do with each other.
	EXPECT_ERROR(cudaEventElapsedTime(&milliseconds, ready, back), cudaErrorInvalidResourceHandle);
	// An event is recorded in streams of its own device.
	EXPECT_ERROR(cudaEventRecord(back, at_a), cudaErrorInvalidResourceHandle);
	(void)cudaGetLastError();

	// A long chain between both, never waited for in between.
	CUDA(cudaSetDevice(0));
	CUDA(cudaMemset(a, 0, sizeof(int)));
	CUDA(cudaDeviceSynchronize());
	for (int i = 0; i < 50; i++) {
		CUDA(cudaSetDevice(0));
		add_to<<<1, 1, 0, at_a>>>(a, a, 1, 1);
		CUDA(cudaEventRecord(ready, at_a));
		CUDA(cudaStreamWaitEvent(at_b, ready, 0));
		CUDA(cudaMemcpyPeerAsync(b, 1, a, 0, sizeof(int), at_b));
		CUDA(cudaSetDevice(1));
		add_to<<<1, 1, 0, at_b>>>(b, b, 1, 1);
		CUDA(cudaMemcpyPeerAsync(a, 0, b, 1, sizeof(int), at_b));
		CUDA(cudaEventRecord(back, at_b));
		CUDA(cudaStreamWaitEvent(at_a, back, 0));
	}
	CUDA(cudaStreamSynchronize(at_a));
	EXPECT(read_back(a, 1)[0] == 100);
	return passed();
}
