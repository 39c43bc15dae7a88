/* replays N RESULT: launch a graph once, and N times more; the first call that waits then gives RESULT, and no other an
 * error. */
#include "../calls.h"

int main(int argc, char **argv)
{
	CUDA_MEMSET_NODE_PARAMS fill = { .elementSize = 4, .value = 5, .width = 1, .height = 1 };
	CUgraphExec executable;
	CUcontext context;
	CUgraphNode node;
	CUgraph graph;

	REQUIRE(argc == 3);
	context = begin();
	fill.dst = words(1, 0);
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, context));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuGraphDestroy(graph));
	for (int i = 0; i <= atoi(argv[1]); i++)
		CHECK(cuGraphLaunch(executable, NULL));
	EXPECT(cuCtxSynchronize(), atoi(argv[2]));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(word_at(fill.dst), 5);
	return 0;
}
