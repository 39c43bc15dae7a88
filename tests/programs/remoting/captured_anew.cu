// A graph is captured again and again, with other copies from and to the program's memory and another host function, and
// put into the executable of the first, while the one before may still run; then it is destroyed, and the executable launched.
#include "check.h"

#include <atomic>

static std::atomic<long> called;

static void CUDART_CB call(void *number)
{
	called += (long)number;
}

__global__ void twice(long *values)
{
	values[threadIdx.x] *= 2;
}

int main()
{
	const int count = 100, rounds = 20;
	long *from[2], *to[2], *device, wanted = 0;
	cudaGraphExec_t executable = nullptr;
	cudaStream_t stream;

	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMalloc(&device, count * sizeof(long)));
	for (int i = 0; i < 2; i++) {
		CUDA(cudaMallocHost(&from[i], count * sizeof(long)));
		CUDA(cudaMallocHost(&to[i], count * sizeof(long)));
	}
	for (long round = 0; round < rounds; round++) {
		cudaGraphExecUpdateResultInfo info;
		const int which = round % 2;
		cudaGraph_t graph;

		CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
		CUDA(cudaMemcpyAsync(device, from[which], count * sizeof(long), cudaMemcpyHostToDevice, stream));
		twice<<<1, count, 0, stream>>>(device);
		CUDA(cudaMemcpyAsync(to[which], device, count * sizeof(long), cudaMemcpyDeviceToHost, stream));
		CUDA(cudaLaunchHostFunc(stream, call, (void *)(round + 1)));
		CUDA(cudaStreamEndCapture(stream, &graph));
		if (executable)
			CUDA(cudaGraphExecUpdate(executable, graph, &info));
		else
			CUDA(cudaGraphInstantiate(&executable, graph, 0));
		CUDA(cudaGraphDestroy(graph));
		// Of every other round the launch may be under way when the next one updates.
		if (which)
			CUDA(cudaStreamSynchronize(stream));
		for (int i = 0; i < count; i++)
			from[which][i] = round * 1000 + i;
		CUDA(cudaGraphLaunch(executable, stream));
		wanted += round + 1;
		if (!which)
			continue;
		CUDA(cudaStreamSynchronize(stream));
		for (int i = 0; i < count; i++) {
			EXPECT(to[0][i] == 2 * ((round - 1) * 1000 + i));
			EXPECT(to[1][i] == 2 * (round * 1000 + i));
		}
		EXPECT(called == wanted);
	}
	CUDA(cudaGraphExecDestroy(executable));
	CUDA(cudaDeviceSynchronize());
	return passed();
}
