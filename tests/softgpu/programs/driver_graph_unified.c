/* Copy nodes whose addresses say themselves whose memory it is, as cudaMemcpyDefault has it: the program's, pinned and
 * not, and a device's.  Each launch reads it again. */
#include "graph.h"

#define WORDS 32u

static CUgraphNode add_copy(CUgraph graph, CUgraphNode before, CUdeviceptr to, CUdeviceptr from, bool generic)
{
	CUgraphNodeParams params = { .type = CU_GRAPH_NODE_TYPE_MEMCPY };
	CUDA_MEMCPY3D *copy = &params.memcpy.copyParams;
	CUgraphNode node;

	*copy = (CUDA_MEMCPY3D){
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = from, .srcPitch = WORDS * 4,
		.dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = to, .dstPitch = WORDS * 4,
		.WidthInBytes = WORDS * 4, .Height = 1, .Depth = 1,
	};
	CHECK(cuCtxGetCurrent(&params.memcpy.copyCtx));
	if (generic)
		CHECK(cuGraphAddNode(&node, graph, &before, NULL, before != NULL, &params));
	else
		CHECK(cuGraphAddMemcpyNode(&node, graph, &before, before != NULL, copy, params.memcpy.copyCtx));
	return node;
}

int main(void)
{
	unsigned own[WORDS], back[WORDS], *pinned;
	CUdeviceptr first, second;
	CUgraphExec executable;
	CUgraphNode node;
	CUgraph graph;

	begin();
	CHECK(cuMemAlloc(&first, sizeof own));
	CHECK(cuMemAlloc(&second, sizeof own));
	CHECK(cuMemHostAlloc((void **)&pinned, sizeof own, 0));
	CHECK(cuMemHostRegister(back, sizeof back, 0));
	CHECK(cuGraphCreate(&graph, 0));
	node = add_copy(graph, NULL, first, (CUdeviceptr)(uintptr_t)own, false);
	node = add_copy(graph, node, second, first, true);
	node = add_copy(graph, node, (CUdeviceptr)(uintptr_t)pinned, second, true);
	add_copy(graph, node, (CUdeviceptr)(uintptr_t)back, second, false);
	executable = instantiate(graph);
	for (unsigned round = 1; round < 3; round++) {
		for (unsigned k = 0; k < WORDS; k++)
			own[k] = round * 100 + k;
		memset(pinned, 0, sizeof own);
		memset(back, 0, sizeof back);
		run(executable, NULL);
		REQUIRE(!memcmp(pinned, own, sizeof own));
		REQUIRE(!memcmp(back, own, sizeof own));
	}
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuMemHostUnregister(back));
	return 0;
}
