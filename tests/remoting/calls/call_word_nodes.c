/* Nodes of graphs that write words of memory or wait for them, and what nodes tell of
 * themselves. */
#include "calls.h"

static CUstream stream;

static void run(CUgraphExec executable)
{
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
}

static CUstreamBatchMemOpParams writing(CUdeviceptr address, unsigned value)
{
	return (CUstreamBatchMemOpParams){
		.writeValue = { .operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = address,
				.value = value },
	};
}

static CUstreamBatchMemOpParams waiting(CUdeviceptr address, unsigned value)
{
	return (CUstreamBatchMemOpParams){
		.waitValue = { .operation = CU_STREAM_MEM_OP_WAIT_VALUE_32, .address = address,
			       .value = value, .flags = CU_STREAM_WAIT_VALUE_EQ },
	};
}

static void words_of_memory(CUcontext context, CUdeviceptr memory)
{
	CUstreamBatchMemOpParams first[2] = { writing(memory, 5), writing(memory + 4, 6) };
	CUstreamBatchMemOpParams second = waiting(memory + 8, 9);
	CUDA_BATCH_MEM_OP_NODE_PARAMS params = { context, 2, first, 0 }, told;
	CUstreamBatchMemOpParams *known;
	CUgraphNodeType type;
	CUgraphExec executable;
	CUgraphNode node, next;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &params));
	CHECK(cuGraphNodeGetType(node, &type));
	REQUIRE_EQUAL(type, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
	CHECK(cuGraphBatchMemOpNodeGetParams(node, &told));
	REQUIRE(told.ctx == context && told.count == 2 && told.paramArray != first && !told.flags);
	known = told.paramArray;
	REQUIRE(known[1].writeValue.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 &&
		known[1].writeValue.address == memory + 4 && known[1].writeValue.value == 6);
	/* The second waits for a word that the other stream writes. */
	params = (CUDA_BATCH_MEM_OP_NODE_PARAMS){ context, 1, &second, 0 };
	CHECK(cuGraphAddBatchMemOpNode(&next, graph, &node, 1, &params));
	REQUIRE(known[0].writeValue.value == 5);	/* what was told before is still there */
	params.flags = 1;
	EXPECT(cuGraphAddBatchMemOpNode(&next, graph, &node, 1, &params), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuGraphLaunch(executable, stream));
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	CHECK(cuMemcpyHtoD_v2(memory + 8, &(unsigned){ 9 }, 4));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(memory), 5);
	REQUIRE_EQUAL(word_at(memory + 4), 6);

	first[0].writeValue.value = 15;
	params = (CUDA_BATCH_MEM_OP_NODE_PARAMS){ context, 1, first, 0 };
	CHECK(cuGraphExecBatchMemOpNodeSetParams(executable, node, &params));
	run(executable);
	REQUIRE_EQUAL(word_at(memory), 15);
	CHECK(cuGraphBatchMemOpNodeGetParams(node, &told));
	REQUIRE(told.count == 2 && told.paramArray[0].writeValue.value == 5);
	first[0].writeValue.value = 25;
	CHECK(cuGraphBatchMemOpNodeSetParams(node, &params));
	CHECK(cuGraphBatchMemOpNodeGetParams(node, &told));
	REQUIRE(told.count == 1 && told.paramArray[0].writeValue.value == 25);
	run(executable);
	REQUIRE_EQUAL(word_at(memory), 15);	/* the executable has its own */
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	run(executable);
	REQUIRE_EQUAL(word_at(memory), 25);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

/* The same operations in a stream that captures. */
static void captured(CUdeviceptr memory)
{
	CUgraphNodeParams told;
	CUgraphExec executable;
	CUgraphNode node;
	CUgraph graph;
	size_t count = 1;

	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuStreamWriteValue32_v2(stream, memory, 35, 0));
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphGetNodes(graph, &node, &count));
	REQUIRE_EQUAL(count, 1);
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP && told.memOp.count == 1 &&
		told.memOp.paramArray[0].writeValue.value == 35);
	REQUIRE_EQUAL(word_at(memory), 25);
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	run(executable);
	REQUIRE_EQUAL(word_at(memory), 35);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

static void note(void *calls)
{
	++*(int *)calls;
}

static void descriptions(CUcontext context, CUdeviceptr memory)
{
	unsigned value = 77;
	void *parameters[] = { &memory, &value };
	const CUDA_KERNEL_NODE_PARAMS kernel = {
		.func = store_kernel(), .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
		.blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters,
	};
	const CUDA_MEMSET_NODE_PARAMS fill = {
		.dst = memory, .value = 3, .elementSize = 4, .width = 2, .height = 1,
	};
	const CUDA_MEMCPY3D copy = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = memory,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory + 8,
		.WidthInBytes = 4, .Height = 1, .Depth = 1,
	};
	const CUDA_HOST_NODE_PARAMS host = { .fn = note, .userData = &value };
	const CUmemAccessDesc both[2] = {
		{ .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
		  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
		{ .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1 },
		  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
	};
	CUDA_MEM_ALLOC_NODE_PARAMS alloc = {
		.poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			       .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } },
		.accessDescs = both, .accessDescCount = 2, .bytesize = 4096,
	};
	CUgraphNodeParams told;
	CUgraph graph, child;
	CUgraphNode node;
	CUevent event;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel));
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.type == CU_GRAPH_NODE_TYPE_KERNEL && told.kernel.func == kernel.func &&
		told.kernel.gridDimX == 1 && *(unsigned *)told.kernel.kernelParams[1] == 77);
	CHECK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, context));
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.type == CU_GRAPH_NODE_TYPE_MEMSET && told.memset.dst == memory &&
		told.memset.width == 2 && told.memset.ctx == context);
	CHECK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, context));
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.type == CU_GRAPH_NODE_TYPE_MEMCPY && told.memcpy.copyCtx == context &&
		told.memcpy.copyParams.dstDevice == memory + 8);
	CHECK(cuGraphAddHostNode(&node, graph, NULL, 0, &host));
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.type == CU_GRAPH_NODE_TYPE_HOST && told.host.fn == note &&
		told.host.userData == &value);
	CHECK(cuEventCreate(&event, 0));
	CHECK(cuGraphAddEventRecordNode(&node, graph, NULL, 0, event));
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD && told.eventRecord.event == event);
	CHECK(cuGraphAddEventWaitNode(&node, graph, NULL, 0, event));
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && told.eventWait.event == event);
	CHECK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE_EQUAL(told.type, CU_GRAPH_NODE_TYPE_EMPTY);
	CHECK(cuGraphCreate(&child, 0));
	CHECK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.type == CU_GRAPH_NODE_TYPE_GRAPH && told.graph.graph != child &&
		told.graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID);
	CHECK(cuGraphDestroy(child));
	CHECK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &alloc));
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && told.alloc.dptr == alloc.dptr &&
		told.alloc.accessDescCount == 2 && told.alloc.accessDescs[1].location.id == 1);
	CHECK(cuGraphAddMemFreeNode(&node, graph, &node, 1, alloc.dptr));
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.type == CU_GRAPH_NODE_TYPE_MEM_FREE && told.free.dptr == alloc.dptr);
	EXPECT(cuGraphNodeGetParams((CUgraphNode)graph, &told), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphDestroy(graph));
	CHECK(cuEventDestroy_v2(event));
}

int main(void)
{
	CUcontext context = begin();
	CUdeviceptr memory = words(4, 0);

	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	words_of_memory(context, memory);
	captured(memory);
	descriptions(context, memory);
	return 0;
}
