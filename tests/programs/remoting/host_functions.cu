// Host functions and stream callbacks run in stream order, and pinned memory that
// one writes is read by the copy behind it.
#include "check.h"

#include <atomic>
#include <chrono>
#include <thread>

static std::atomic<int> order{0};
static int *pinned;

static void fill(void *argument)
{
	std::this_thread::sleep_for(std::chrono::milliseconds(50));
	pinned[0] = *(int *)argument;
	order = order == 0 ? 1 : -1;
}

static void CUDART_CB after(cudaStream_t, cudaError_t status, void *argument)
{
	*(int *)argument = status == cudaSuccess && order == 1;
}

int main()
{
	int *device, value = 4711, back = 0, called = 0;
	cudaStream_t stream;
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMalloc(&device, sizeof(int)));
	CUDA(cudaMallocHost(&pinned, sizeof(int)));
	pinned[0] = 0;
	CUDA(cudaLaunchHostFunc(stream, fill, &value));
	CUDA(cudaMemcpyAsync(device, pinned, sizeof(int), cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamAddCallback(stream, after, &called, 0));
	CUDA(cudaStreamSynchronize(stream));
	EXPECT(order == 1);
	EXPECT(called == 1);
	CUDA(cudaMemcpy(&back, device, sizeof(int), cudaMemcpyDeviceToHost));
	EXPECT(back == 4711);
	return passed();
}
