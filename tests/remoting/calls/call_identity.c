/* What identifies graphs, executables and their nodes. */
#include "calls.h"

int main(void)
{
	CUgraph graph, other, found;
	CUgraphNode first, second, foreign;
	unsigned id, same, there, one, two;
	unsigned long long tools, more;
	CUgraphExec executable;

	begin();
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphCreate(&other, 0));
	CHECK(cuGraphAddEmptyNode(&first, graph, NULL, 0));
	CHECK(cuGraphAddEmptyNode(&second, graph, &first, 1));
	CHECK(cuGraphAddEmptyNode(&foreign, other, NULL, 0));

	CHECK(cuGraphGetId(graph, &id));
	CHECK(cuGraphGetId(graph, &same));
	CHECK(cuGraphGetId(other, &there));
	REQUIRE(id == same && id != there);
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuGraphExecGetId(executable, &there));
	REQUIRE(there != id);

	CHECK(cuGraphNodeGetContainingGraph(second, &found));
	REQUIRE(found == graph);
	CHECK(cuGraphNodeGetContainingGraph(foreign, &found));
	REQUIRE(found == other);
	CHECK(cuGraphNodeGetLocalId(first, &one));
	CHECK(cuGraphNodeGetLocalId(second, &two));
	REQUIRE(one != two);
	CHECK(cuGraphNodeGetToolsId(first, &tools));
	CHECK(cuGraphNodeGetToolsId(foreign, &more));
	REQUIRE(tools != more);
	CHECK(cuGraphDestroy(other));
	EXPECT(cuGraphGetId(other, &id), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
