/* Clones and child graphs are copies: what happens to the original later does not reach them. */
#include "graph.h"

int main(void)
{
	CUgraphNode store, cloned, child_node, inner, found[2];
	CUgraph graph, clone, parent, child;
	CUDA_KERNEL_NODE_PARAMS params;
	CUdeviceptr word;
	CUgraphExec executable;
	unsigned value = 9;
	size_t count = 2;

	begin();
	word = new_word(0);
	CHECK(cuGraphCreate(&graph, 0));
	store = add_store(graph, NULL, word, 3);
	CHECK(cuGraphClone(&clone, graph));
	CHECK(cuGraphNodeFindInClone(&cloned, store, clone));
	REQUIRE(cloned != store);
	EXPECT(cuGraphNodeFindInClone(&cloned, store, graph), CUDA_ERROR_INVALID_VALUE);

	CHECK(cuGraphCreate(&parent, 0));
	CHECK(cuGraphAddChildGraphNode(&child_node, parent, NULL, 0, graph));
	CHECK(cuGraphChildGraphNodeGetGraph(child_node, &child));
	REQUIRE(child != graph);
	EXPECT(cuGraphDestroy(child), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphGetNodes(child, found, &count));
	REQUIRE_EQUAL(count, 1);
	inner = found[0];

	CHECK(cuGraphKernelNodeGetParams(store, &params));
	params.kernelParams = (void *[]){ &word, &value };
	CHECK(cuGraphKernelNodeSetParams(store, &params));
	executable = instantiate(clone);
	run(executable, NULL);
	REQUIRE_EQUAL(word_at(word), 3);
	CHECK(cuGraphExecDestroy(executable));
	executable = instantiate(graph);
	run(executable, NULL);
	REQUIRE_EQUAL(word_at(word), 9);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));

	executable = instantiate(parent);
	run(executable, NULL);
	REQUIRE_EQUAL(word_at(word), 3);

	/* A node of the child graph, named by its handle. */
	value = 11;
	CHECK(cuGraphExecKernelNodeSetParams(executable, inner, &params));
	run(executable, NULL);
	REQUIRE_EQUAL(word_at(word), 11);

	/* All parameters of the child at once. */
	CHECK(cuGraphExecChildGraphNodeSetParams(executable, child_node, clone));
	run(executable, NULL);
	REQUIRE_EQUAL(word_at(word), 3);
	CHECK(cuGraphExecDestroy(executable));

	/* The parent takes a child over, which then is no longer the program's. */
	{
		CUgraphNodeParams moved = { .type = CU_GRAPH_NODE_TYPE_GRAPH };
		CUgraphNode node;

		moved.graph.graph = clone;
		moved.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
		EXPECT(cuGraphAddNode(&node, clone, NULL, NULL, 0, &moved), CUDA_ERROR_INVALID_VALUE);
		CHECK(cuGraphAddNode(&node, parent, &child_node, NULL, 1, &moved));
		CHECK(cuGraphChildGraphNodeGetGraph(node, &child));
		REQUIRE(child == clone);
		EXPECT(cuGraphDestroy(clone), CUDA_ERROR_INVALID_VALUE);
	}
	/* Deeper and deeper, until that is refused: walks through graphs are recursive. */
	for (int depth = 3;; depth++) {
		CUgraphNode node;
		CUresult result;

		CHECK(cuGraphCreate(&graph, 0));
		result = cuGraphAddChildGraphNode(&node, graph, NULL, 0, parent);
		if (result) {
			EXPECT(result, CUDA_ERROR_NOT_SUPPORTED);
			REQUIRE_EQUAL(depth, 65);
			CHECK(cuGraphDestroy(graph));
			break;
		}
		CHECK(cuGraphDestroy(parent));
		parent = graph;
	}
	executable = instantiate(parent);
	run(executable, NULL);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(parent));
	EXPECT(cuGraphDestroy(clone), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
