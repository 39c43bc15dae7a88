/* Conditional nodes at a server that knows none: there is no handle for them, without one they are refused as everywhere,
 * and calls go on. */
#include "../conditions.h"

int main(void)
{
	CUgraphNodeParams params = conditional(0x1230, CU_GRAPH_COND_TYPE_IF, 1);
	CUgraphConditionalHandle condition;
	CUgraphExec executable;
	CUdeviceptr word;
	CUgraphNode node;
	CUgraph graph;

	begin();
	word = words(1, 0);
	CHECK(cuGraphCreate(&graph, 0));
	for (unsigned i = 0; i < 2; i++)
		EXPECT(cuGraphConditionalHandleCreate(&condition, graph, NULL, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
	node = add_add(graph, NULL, word, 1);
	EXPECT(cuGraphNodeSetParams(node, &params), CUDA_ERROR_INVALID_VALUE);
	executable = executable_of(graph);
	EXPECT(cuGraphExecNodeSetParams(executable, node, &params), CUDA_ERROR_INVALID_VALUE);
	run(executable);
	REQUIRE_EQUAL(word_at(word), 1);
	return 0;
}
