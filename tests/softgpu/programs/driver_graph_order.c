/* A launch comes after the work in its stream, after the launch before in another stream, and before
 * what the stream gets next; destroyed under way, an executable runs to its end. */
#include "graph.h"

int main(void)
{
	CUgraphExec executable;
	CUstream first, second;
	CUdeviceptr word, copy;
	CUgraphNode node;
	CUDA_MEMCPY3D params;
	CUgraph graph;
	struct gate gate;

	begin();
	word = new_word(1);
	copy = new_word(0);
	CHECK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
	CHECK(cuGraphCreate(&graph, 0));
	params = copy_word(copy, word);
	CHECK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &params, NULL));
	executable = instantiate(graph);

	gate_close(&gate, first);
	CHECK(launch_store(kernel("store"), word, 2, first));
	CHECK(cuGraphLaunch(executable, first));
	CHECK(launch_store(kernel("store"), word, 3, first));
	CHECK(cuGraphLaunch(executable, second));
	EXPECT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	gate_open(&gate);
	CHECK(cuStreamSynchronize(second));
	CHECK(cuStreamSynchronize(first));
	REQUIRE_EQUAL(word_at(word), 3);
	REQUIRE(word_at(copy) == 2 || word_at(copy) == 3);
	return 0;
}
