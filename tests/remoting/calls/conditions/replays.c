/* replays N: launch a graph with a loop and a choice in it once, and N times more. */
#include "../conditions.h"

int main(int argc, char **argv)
{
	CUdeviceptr left, sum;
	CUgraphConditionalHandle loop, choice;
	CUgraph graph, body, bodies[2];
	CUgraphExec executable;
	CUgraphNode node;
	int launches;

	REQUIRE(argc == 2);
	launches = atoi(argv[1]) + 1;
	begin();
	left = words(1, 0);
	sum = words(1, 0);
	CHECK(cuGraphCreate(&graph, 0));
	loop = condition_of(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
	choice = condition_of(graph, 0, CU_GRAPH_COND_ASSIGN_DEFAULT);
	node = add_add(graph, NULL, left, 3);
	node = add_conditional(graph, node, loop, CU_GRAPH_COND_TYPE_WHILE, 1, &body);
	add_kernel(body, NULL, "count_down", &loop, &left);
	add_conditional(graph, node, choice, CU_GRAPH_COND_TYPE_IF, 2, bodies);
	add_add(bodies[1], NULL, sum, 1);
	executable = executable_of(graph);
	CHECK(cuGraphDestroy(graph));
	for (int i = 0; i < launches; i++)
		CHECK(cuGraphLaunch(executable, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(word_at(left), 0);
	REQUIRE_EQUAL(word_at(sum), launches);
	return 0;
}
