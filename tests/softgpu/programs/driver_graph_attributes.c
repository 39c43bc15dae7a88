/* Attributes of kernel nodes: asked, set, copied, checked as a launch checks them, and kept when the
 * parameters change; an executable does not let a kernel become cooperative. */
#include "graph.h"

static int cooperative(CUgraphNode node)
{
	CUkernelNodeAttrValue value;

	CHECK(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
	return value.cooperative;
}

int main(void)
{
	CUkernelNodeAttrValue value = { .cooperative = 1 };
	CUgraphExecUpdateResultInfo info;
	CUDA_KERNEL_NODE_PARAMS params;
	CUgraphNode first, second, early;
	CUgraphExec executable;
	CUdeviceptr word;
	CUgraph graph;

	begin();
	word = new_word(0);
	CHECK(cuGraphCreate(&graph, 0));
	first = add_store(graph, NULL, word, 1);
	second = add_store(graph, first, word, 2);
	executable = instantiate(graph);
	REQUIRE_EQUAL(cooperative(first), 0);
	CHECK(cuGraphKernelNodeSetAttribute(first, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
	CHECK(cuGraphKernelNodeCopyAttributes(second, first));
	REQUIRE_EQUAL(cooperative(second), 1);
	CHECK(cuGraphKernelNodeGetParams(second, &params));
	CHECK(cuGraphKernelNodeSetParams(second, &params));
	REQUIRE_EQUAL(cooperative(second), 1);
	EXPECT(cuGraphExecUpdate(executable, graph, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	REQUIRE_EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED);
	CHECK(cuGraphExecDestroy(executable));
	executable = instantiate(graph);
	run(executable, NULL);
	REQUIRE_EQUAL(word_at(word), 2);

	/* More blocks than can be there at once. */
	params.gridDimX = 1 << 20;
	EXPECT(cuGraphKernelNodeSetParams(second, &params), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
	params.gridDimX = 0;
	EXPECT(cuGraphAddKernelNode(&early, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
