/* What a graph uses may be gone when it is launched: a function that was unloaded is an error of the call,
 * memory that was freed one of the run. */
#include "graph.h"

/* Or while the graph waits in another context's stream: an error of the run. */
static void unload_meanwhile(void)
{
	CUDA_KERNEL_NODE_PARAMS params = { .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
					   .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1 };
	CUcontext launching, other;
	CUgraphExec executable;
	unsigned value = 4;
	CUdeviceptr word;
	struct gate gate;
	CUgraphNode node;
	CUmodule module;
	CUstream stream;
	CUgraph graph;

	CHECK(cuCtxCreate(&launching, 0, 0));
	word = new_word(0);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuCtxCreate(&other, 0, 0));
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&params.func, module, "store"));
	params.kernelParams = (void *[]){ &word, &value };
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddKernelNode(&node, graph, NULL, 0, &params));
	executable = instantiate(graph);
	CHECK(cuCtxSetCurrent(launching));
	gate_close(&gate, stream);
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuModuleUnload(module));
	gate_open(&gate);
	EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
	CHECK(cuCtxDestroy(other));
	CHECK(cuCtxDestroy(launching));
}

int main(void)
{
	CUdeviceptr word, other;
	CUgraphExec executable;
	CUfunction function;
	CUgraphNode node;
	CUDA_KERNEL_NODE_PARAMS params = { .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
					   .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1 };
	CUDA_MEMCPY3D copy;
	CUmodule module;
	CUgraph graph;
	unsigned value = 4;

	begin();
	word = new_word(0);
	other = new_word(0);
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&function, module, "store"));
	CHECK(cuGraphCreate(&graph, 0));
	params.func = function;
	params.kernelParams = (void *[]){ &word, &value };
	CHECK(cuGraphAddKernelNode(&node, graph, NULL, 0, &params));
	executable = instantiate(graph);
	run(executable, NULL);
	REQUIRE_EQUAL(word_at(word), 4);
	CHECK(cuModuleUnload(module));
	EXPECT(cuGraphLaunch(executable, NULL), CUDA_ERROR_INVALID_HANDLE);
	/* Loaded again, it is another function, wherever it lies. */
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&function, module, "store"));
	EXPECT(cuGraphLaunch(executable, NULL), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));

	CHECK(cuGraphCreate(&graph, 0));
	copy = copy_word(word, other);
	CHECK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, NULL));
	executable = instantiate(graph);
	CHECK(cuMemFree(other));
	CHECK(cuGraphLaunch(executable, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	unload_meanwhile();
	return 0;
}
