/* Nodes, roots and edges as they were made; what can't be is refused, and changes nothing. */
#include "graph.h"

#define NONE CUDA_ERROR_INVALID_VALUE

int main(void)
{
	CUgraphNode a, b, c, d, other_node, from[5], to[5], nodes[4], wrong;
	CUgraphEdgeData early = { .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, .from_port = 1 }, data[4];
	CUDA_GRAPH_INSTANTIATE_PARAMS params = { 0 };
	CUgraph graph, other;
	CUgraphExec executable;
	size_t count;

	begin();
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphCreate(&other, 0));
	CHECK(cuGraphAddEmptyNode(&other_node, other, NULL, 0));
	CHECK(cuGraphAddEmptyNode(&a, graph, NULL, 0));
	CHECK(cuGraphAddEmptyNode(&b, graph, &a, 1));
	CHECK(cuGraphAddEmptyNode(&c, graph, &a, 1));
	CHECK(cuGraphAddEmptyNode(&d, graph, (CUgraphNode[]){ b, c }, 2));

	EXPECT(cuGraphAddEmptyNode(&wrong, graph, &other_node, 1), NONE);
	EXPECT(cuGraphAddEmptyNode(&wrong, graph, (CUgraphNode[]){ a, a }, 2), NONE);
	EXPECT(cuGraphAddEmptyNode(&wrong, graph, NULL, 1), NONE);
	EXPECT(cuGraphAddDependencies(graph, &a, &a, NULL, 1), NONE);
	EXPECT(cuGraphAddDependencies(graph, &a, &b, NULL, 1), NONE);
	EXPECT(cuGraphAddDependencies(graph, (CUgraphNode[]){ a, a }, (CUgraphNode[]){ d, b }, NULL, 2), NONE);
	EXPECT(cuGraphRemoveDependencies(graph, &b, &c, NULL, 1), NONE);

	CHECK(cuGraphGetNodes(graph, NULL, &count));
	REQUIRE_EQUAL(count, 4);
	count = 4;
	memset(nodes, 0xff, sizeof nodes);
	CHECK(cuGraphGetRootNodes(graph, nodes, &count));
	REQUIRE_EQUAL(count, 1);
	REQUIRE(nodes[0] == a && !nodes[1] && !nodes[2] && !nodes[3]);
	CHECK(cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
	REQUIRE_EQUAL(count, 4);
	memset(from, 0xff, sizeof from);
	memset(to, 0xff, sizeof to);
	count = 5;
	CHECK(cuGraphGetEdges(graph, from, to, NULL, &count));
	REQUIRE_EQUAL(count, 4);
	REQUIRE(!from[4] && !to[4]);
	REQUIRE(from[0] == a && to[0] == b && from[1] == a && to[1] == c);
	REQUIRE(from[2] == b && to[2] == d && from[3] == c && to[3] == d);
	count = 4;
	memset(nodes, 0xff, sizeof nodes);
	CHECK(cuGraphNodeGetDependencies(d, nodes, NULL, &count));
	REQUIRE_EQUAL(count, 2);
	REQUIRE(nodes[0] == b && nodes[1] == c && !nodes[2] && !nodes[3]);
	count = 1;
	CHECK(cuGraphNodeGetDependentNodes(a, nodes, NULL, &count));
	REQUIRE_EQUAL(count, 1);
	REQUIRE(nodes[0] == b);

	/* Edge data is kept, and not lost without notice. */
	CHECK(cuGraphRemoveDependencies(graph, &a, &b, NULL, 1));
	CHECK(cuGraphAddDependencies(graph, &a, &b, &early, 1));
	count = 4;
	EXPECT(cuGraphNodeGetDependencies(b, nodes, NULL, &count), CUDA_ERROR_LOSSY_QUERY);
	CHECK(cuGraphNodeGetDependencies(b, nodes, data, &count));
	REQUIRE_EQUAL(data[0].type, early.type);
	EXPECT(cuGraphRemoveDependencies(graph, &a, &b, NULL, 1), NONE);
	CHECK(cuGraphRemoveDependencies(graph, &a, &b, &early, 1));

	/* A ring is only found when the graph is instantiated. */
	CHECK(cuGraphAddDependencies(graph, &d, &b, NULL, 1));
	EXPECT(cuGraphInstantiateWithParams(&executable, graph, &params), NONE);
	REQUIRE_EQUAL(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
	REQUIRE(params.hErrNode_out == b || params.hErrNode_out == d);
	CHECK(cuGraphDestroyNode(b));
	EXPECT(cuGraphDestroyNode(b), NONE);
	count = 4;
	CHECK(cuGraphNodeGetDependencies(d, nodes, NULL, &count));
	REQUIRE_EQUAL(count, 1);
	CHECK(cuGraphInstantiateWithParams(&executable, graph, &params));
	REQUIRE_EQUAL(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuGraphDestroy(other));
	return 0;
}
