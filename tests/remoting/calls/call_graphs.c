/* Graphs by the functions of their first versions, and each node's parameters read and changed. */
#include "calls.h"

static CUdeviceptr word, target;

static void run(CUgraphExec executable)
{
	CHECK(cuGraphUpload(executable, NULL));
	CHECK(cuGraphLaunch(executable, NULL));
	CHECK(cuStreamSynchronize(NULL));
}

static CUgraphExec instantiate(CUgraph graph)
{
	CUgraphExec executable;
	CUgraphNode failed;
	char log[64];

	CHECK(cuGraphInstantiate_v2(&executable, graph, &failed, log, sizeof(log)));
	return executable;
}

static void test_kernel(void)
{
	unsigned value = 3;
	void *params[] = { &word, &value };
	CUDA_KERNEL_NODE_PARAMS_v1 node = { .func = store_kernel(), .gridDimX = 1, .gridDimY = 1,
					    .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
					    .blockDimZ = 1, .kernelParams = params }, back;
	CUgraphNode store, failed;
	CUgraphNodeType type;
	CUgraphExec executable;
	CUgraphExecUpdateResult updated;
	CUgraph graph;
	char log[64];

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddKernelNode(&store, graph, NULL, 0, &node));
	CHECK(cuGraphNodeGetType(store, &type));
	REQUIRE_EQUAL(type, CU_GRAPH_NODE_TYPE_KERNEL);
	CHECK(cuGraphKernelNodeGetParams(store, &back));
	REQUIRE(back.func == node.func && back.blockDimX == 1 && back.kernelParams);
	REQUIRE_EQUAL(*(unsigned *)back.kernelParams[1], 3);
	REQUIRE(*(CUdeviceptr *)back.kernelParams[0] == word);
	CHECK(cuGraphInstantiate(&executable, graph, &failed, log, sizeof(log)));
	run(executable);
	REQUIRE_EQUAL(word_at(word), 3);
	value = 4;
	CHECK(cuGraphExecKernelNodeSetParams(executable, store, &node));
	run(executable);
	REQUIRE_EQUAL(word_at(word), 4);
	value = 5;
	CHECK(cuGraphKernelNodeSetParams(store, &node));
	CHECK(cuGraphExecUpdate(executable, graph, &failed, &updated));
	REQUIRE_EQUAL(updated, CU_GRAPH_EXEC_UPDATE_SUCCESS);
	run(executable);
	REQUIRE_EQUAL(word_at(word), 5);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	EXPECT(cuGraphKernelNodeGetParams(store, &back), CUDA_ERROR_INVALID_VALUE);
}

static void note(void *argument)
{
	++*(int *)argument;
}

static void test_others(void)
{
	CUDA_MEMSET_NODE_PARAMS fill = { .dst = word, .elementSize = 4, .value = 6, .width = 1,
					 .height = 1 }, filled;
	CUDA_MEMCPY3D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = word,
			       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = target,
			       .WidthInBytes = 4, .Height = 1, .Depth = 1 }, copied;
	/* A server that lies may have note called when this has returned: on the stack it would count a return address up. */
	static int here, there;
	CUDA_HOST_NODE_PARAMS host = { .fn = note, .userData = &here }, hosted;
	CUgraphNode set, move, call, nodes[4], from[4], to[4];
	CUgraphExec executable;
	CUcontext context;
	CUgraph graph;
	size_t count;

	CHECK(cuCtxGetCurrent(&context));
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemsetNode(&set, graph, NULL, 0, &fill, context));
	CHECK(cuGraphAddMemcpyNode(&move, graph, NULL, 0, &copy, context));
	CHECK(cuGraphAddHostNode(&call, graph, &move, 1, &host));
	CHECK(cuGraphAddDependencies(graph, &set, &move, 1));
	count = 4;
	CHECK(cuGraphGetEdges(graph, from, to, &count));
	REQUIRE_EQUAL(count, 2);
	CHECK(cuGraphGetEdges(graph, NULL, NULL, &count));
	REQUIRE_EQUAL(count, 2);
	count = 4;
	CHECK(cuGraphNodeGetDependencies(move, nodes, &count));
	REQUIRE(count == 1 && nodes[0] == set);
	count = 4;
	CHECK(cuGraphNodeGetDependentNodes(move, nodes, &count));
	REQUIRE(count == 1 && nodes[0] == call);
	CHECK(cuGraphMemsetNodeGetParams(set, &filled));
	REQUIRE(filled.dst == word && filled.value == 6);
	CHECK(cuGraphMemcpyNodeGetParams(move, &copied));
	REQUIRE(copied.srcDevice == word && copied.dstDevice == target);
	CHECK(cuGraphHostNodeGetParams(call, &hosted));
	REQUIRE(hosted.fn == note && hosted.userData == &here);
	executable = instantiate(graph);
	run(executable);
	REQUIRE(word_at(word) == 6 && word_at(target) == 6 && here == 1);
	run(executable);
	REQUIRE_EQUAL(here, 2);

	/* In the executable alone. */
	fill.value = 7;
	host.userData = &there;
	copy.dstDevice = target + 4;
	CHECK(cuGraphExecMemsetNodeSetParams(executable, set, &fill, context));
	CHECK(cuGraphExecMemcpyNodeSetParams(executable, move, &copy, context));
	CHECK(cuGraphExecHostNodeSetParams(executable, call, &host));
	run(executable);
	REQUIRE(word_at(word) == 7 && word_at(target) == 6 && word_at(target + 4) == 7);
	REQUIRE(here == 2 && there == 1);
	CHECK(cuGraphExecDestroy(executable));

	/* In the graph. */
	fill.value = 8;
	CHECK(cuGraphMemsetNodeSetParams(set, &fill));
	CHECK(cuGraphMemcpyNodeSetParams(move, &copy));
	CHECK(cuGraphHostNodeSetParams(call, &host));
	executable = instantiate(graph);
	run(executable);
	REQUIRE(word_at(target + 4) == 8 && there == 2);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphRemoveDependencies(graph, &set, &move, 1));
	CHECK(cuGraphGetEdges(graph, NULL, NULL, &count));
	REQUIRE_EQUAL(count, 1);
	CHECK(cuGraphDestroy(graph));
}

static void test_events(void)
{
	CUgraphNode record, wait;
	CUgraphExec executable;
	CUevent first, second, found;
	CUgraph graph;

	CHECK(cuEventCreate(&first, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventCreate(&second, CU_EVENT_DISABLE_TIMING));
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddEventRecordNode(&record, graph, NULL, 0, first));
	CHECK(cuGraphAddEventWaitNode(&wait, graph, &record, 1, first));
	CHECK(cuGraphEventRecordNodeSetEvent(record, second));
	CHECK(cuGraphEventRecordNodeGetEvent(record, &found));
	REQUIRE(found == second);
	CHECK(cuGraphEventWaitNodeSetEvent(wait, second));
	CHECK(cuGraphEventWaitNodeGetEvent(wait, &found));
	REQUIRE(found == second);
	executable = instantiate(graph);
	CHECK(cuGraphExecEventRecordNodeSetEvent(executable, record, first));
	CHECK(cuGraphExecEventWaitNodeSetEvent(executable, wait, first));
	run(executable);
	CHECK(cuEventQuery(first));
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

static void test_any_node(void)
{
	CUgraphNodeParams node = { .type = CU_GRAPH_NODE_TYPE_MEMSET };
	CUgraphNode set, empty;
	CUgraphExec executable;
	CUgraph graph;

	CHECK(cuCtxGetCurrent(&node.memset.ctx));
	node.memset.dst = word;
	node.memset.elementSize = 4;
	node.memset.value = 20;
	node.memset.width = 1;
	node.memset.height = 1;
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddEmptyNode(&empty, graph, NULL, 0));
	CHECK(cuGraphAddNode(&set, graph, &empty, 1, &node));
	executable = instantiate(graph);
	run(executable);
	REQUIRE_EQUAL(word_at(word), 20);
	node.memset.value = 21;
	CHECK(cuGraphExecNodeSetParams(executable, set, &node));
	run(executable);
	REQUIRE_EQUAL(word_at(word), 21);
	CHECK(cuGraphExecDestroy(executable));
	node.memset.value = 22;
	CHECK(cuGraphNodeSetParams(set, &node));
	executable = instantiate(graph);
	run(executable);
	REQUIRE_EQUAL(word_at(word), 22);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

int main(void)
{
	begin();
	word = words(1, 0);
	target = words(2, 0);
	test_kernel();
	test_others();
	test_events();
	test_any_node();
	return 0;
}
