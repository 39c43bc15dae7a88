/* Executables take new parameters, node by node or from another graph; launches under way keep theirs;
 * what differs in shape or kind is refused with the reason, and changes nothing. */
#include "graph.h"

static void on_host(void *argument)
{
	++*(int *)argument;
}

int main(void)
{
	CUgraphNode fill, store, other_fill, other_store;
	CUDA_MEMSET_NODE_PARAMS params;
	CUDA_KERNEL_NODE_PARAMS kernel_params;
	CUDA_HOST_NODE_PARAMS host = { on_host, NULL };
	CUgraphExecUpdateResultInfo info;
	CUgraphExec executable;
	CUdeviceptr a, b;
	CUgraph graph, other;
	CUstream stream;
	struct gate gate;
	unsigned value = 20, enabled;

	begin();
	a = new_word(0);
	b = new_word(0);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuGraphCreate(&graph, 0));
	params = fill_word(a, 1);
	CHECK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &params, NULL));
	store = add_store(graph, fill, b, 2);
	executable = instantiate(graph);

	/* A launch that waits in its stream keeps the parameters that it was launched with. */
	gate_close(&gate, stream);
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuGraphKernelNodeGetParams(store, &kernel_params));
	kernel_params.kernelParams = (void *[]){ &b, &value };
	CHECK(cuGraphExecKernelNodeSetParams(executable, store, &kernel_params));
	params = fill_word(a, 10);
	CHECK(cuGraphExecMemsetNodeSetParams(executable, fill, &params, NULL));
	gate_open(&gate);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(a), 1);
	REQUIRE_EQUAL(word_at(b), 2);
	run(executable, stream);
	REQUIRE_EQUAL(word_at(a), 10);
	REQUIRE_EQUAL(word_at(b), 20);
	EXPECT(cuGraphExecMemsetNodeSetParams(executable, store, &params, NULL), CUDA_ERROR_INVALID_VALUE);

	/* Switched off, a node is empty. */
	CHECK(cuMemsetD32(a, 0, 1));
	CHECK(cuGraphNodeSetEnabled(executable, fill, 0));
	CHECK(cuGraphNodeGetEnabled(executable, fill, &enabled));
	REQUIRE_EQUAL(enabled, 0);
	run(executable, stream);
	REQUIRE_EQUAL(word_at(a), 0);
	CHECK(cuGraphNodeSetEnabled(executable, fill, 1));

	/* The same shape, made in another order. */
	CHECK(cuGraphCreate(&other, 0));
	other_store = add_store(other, NULL, a, 31);
	params = fill_word(b, 30);
	CHECK(cuGraphAddMemsetNode(&other_fill, other, NULL, 0, &params, NULL));
	EXPECT(cuGraphExecUpdate(executable, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	REQUIRE_EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
	CHECK(cuGraphAddDependencies(other, &other_fill, &other_store, NULL, 1));
	CHECK(cuGraphExecUpdate(executable, other, &info));
	REQUIRE_EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
	run(executable, stream);
	REQUIRE_EQUAL(word_at(a), 31);
	REQUIRE_EQUAL(word_at(b), 30);
	CHECK(cuGraphDestroy(other));
	/* The nodes of the first graph still name those of the executable. */
	params = fill_word(b, 40);
	CHECK(cuGraphExecMemsetNodeSetParams(executable, fill, &params, NULL));
	run(executable, stream);
	REQUIRE_EQUAL(word_at(b), 40);

	/* Another type in the same place. */
	CHECK(cuGraphCreate(&other, 0));
	CHECK(cuGraphAddHostNode(&other_fill, other, NULL, 0, &host));
	add_store(other, other_fill, a, 50);
	EXPECT(cuGraphExecUpdate(executable, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	REQUIRE_EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
	REQUIRE(info.errorNode == other_fill);
	CHECK(cuGraphDestroy(other));

	/* One node more. */
	CHECK(cuGraphClone(&other, graph));
	CHECK(cuGraphAddEmptyNode(&other_fill, other, NULL, 0));
	EXPECT(cuGraphExecUpdate(executable, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	REQUIRE_EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
	REQUIRE(!info.errorNode);
	run(executable, stream);
	REQUIRE_EQUAL(word_at(a), 31);
	return 0;
}
