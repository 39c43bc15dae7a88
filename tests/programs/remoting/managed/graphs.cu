// Graphs, captured and made by hand, that use managed memory; the processor changes it between runs.
#include "../check.h"

__global__ void scale(int *data, int n, const int *by)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		data[i] *= *by;
}

int main()
{
	const int n = 20000;
	int *data, *by, *copy;
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t run;

	CUDA(cudaMallocManaged(&data, n * sizeof(int)));
	CUDA(cudaMallocManaged(&copy, n * sizeof(int)));
	CUDA(cudaMallocManaged(&by, sizeof(int)));
	CUDA(cudaStreamCreate(&stream));
	for (int i = 0; i < n; i++)
		data[i] = 1;
	*by = 99;
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	scale<<<(n + 127) / 128, 128, 0, stream>>>(data, n, by);
	CUDA(cudaMemcpyAsync(copy, data, n * sizeof(int), cudaMemcpyDefault, stream));
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&run, graph, 0));
	// Nothing has run yet.
	EXPECT(data[0] == 1 && *by == 99 && copy[0] == 0);
	int wanted = 1;
	for (int round = 2; round < 6; round++) {
		*by = round;
		CUDA(cudaGraphLaunch(run, stream));
		CUDA(cudaStreamSynchronize(stream));
		wanted *= round;
		for (int i = 0; i < n; i++)
			if (data[i] != wanted || copy[i] != wanted)
				FAIL("round %d, %d: %d and %d", round, i, data[i], copy[i]);
		data[n - 1] = wanted;
	}
	CUDA(cudaGraphExecDestroy(run));
	CUDA(cudaGraphDestroy(graph));
	// By hand: a copy out of managed memory into managed memory, and a fill.
	cudaGraphNode_t node, fill;
	cudaMemsetParams zero = {};
	CUDA(cudaGraphCreate(&graph, 0));
	CUDA(cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, copy, data, n * sizeof(int), cudaMemcpyDefault));
	zero.dst = data;
	zero.elementSize = 4;
	zero.width = n;
	zero.height = 1;
	zero.value = 3;
	CUDA(cudaGraphAddMemsetNode(&fill, graph, &node, 1, &zero));
	CUDA(cudaGraphInstantiate(&run, graph, 0));
	for (int i = 0; i < n; i++)
		data[i] = i;
	CUDA(cudaGraphLaunch(run, stream));
	CUDA(cudaStreamSynchronize(stream));
	for (int i = 0; i < n; i++)
		EXPECT(copy[i] == i && data[i] == 3);
	return passed();
}
