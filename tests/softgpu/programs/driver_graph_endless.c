/* softgpu: grace_s=0
 * A context can be reset and destroyed while a graph's loop would go on for ever: of short kernels, of fills, and of nothing. */
#include "graph.h"

static void start(bool stores, bool fills)
{
	CUgraphNodeParams params = { .type = CU_GRAPH_NODE_TYPE_CONDITIONAL };
	CUdeviceptr word = new_word(0);
	CUDA_MEMSET_NODE_PARAMS fill = fill_word(word, 1);
	CUgraph graph, body;
	CUgraphNode node;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphConditionalHandleCreate(&params.conditional.handle, graph, NULL, 1,
					     CU_GRAPH_COND_ASSIGN_DEFAULT));
	params.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
	params.conditional.size = 1;
	CHECK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &params));
	body = params.conditional.phGraph_out[0];
	if (stores)
		add_store(body, NULL, word, 1);
	if (fills)
		CHECK(cuGraphAddMemsetNode(&node, body, NULL, 0, &fill, NULL));
	CHECK(cuGraphLaunch(instantiate(graph), NULL));
}

int main(void)
{
	CUcontext context;

	begin();
	start(true, true);
	CHECK(cuDevicePrimaryCtxReset(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
	REQUIRE_EQUAL(word_at(new_word(3)), 3);
	CHECK(cuCtxCreate(&context, 0, 0));
	start(false, true);
	CHECK(cuCtxDestroy(context));
	CHECK(cuCtxCreate(&context, 0, 0));
	start(false, false);
	CHECK(cuCtxDestroy(context));
	return 0;
}
