/* Words of managed memory, and of pinned memory as managed memory: streams and graphs write them, and are
 * refused to wait for them. */
#include "../calls.h"

static CUstream stream;

static CUstreamBatchMemOpParams writing(CUdeviceptr address, unsigned value)
{
	return (CUstreamBatchMemOpParams){
		.writeValue = { .operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = address, .value = value },
	};
}

static CUstreamBatchMemOpParams waiting(CUstreamBatchMemOpType operation, CUdeviceptr address)
{
	return (CUstreamBatchMemOpParams){
		.waitValue = { .operation = operation, .address = address, .value = 0,
			       .flags = CU_STREAM_WAIT_VALUE_EQ },
	};
}

static void written(unsigned *words)
{
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)words;
	CUstreamBatchMemOpParams ops[2] = { writing(at + 16, 31), writing(at + 20, 32) };
	CUDA_BATCH_MEM_OP_NODE_PARAMS params = { .count = 2, .paramArray = ops };
	unsigned long long wide = 3ull << 40 | 5;
	CUgraphExec executable;
	CUgraphNode node;
	CUgraph graph;

	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 1000; i++)
			words[i] = round + i;
		CHECK(cuStreamWriteValue32_v2(stream, at, 11 + round, 0));
		CHECK(cuStreamWriteValue64_v2(stream, at + 8, wide + round, 0));
		CHECK(cuStreamBatchMemOp_v2(stream, 2, ops, 0));
		CHECK(cuStreamSynchronize(stream));
		REQUIRE_EQUAL(words[0], 11 + round);
		REQUIRE_EQUAL(words[1], 1 + round);
		REQUIRE(!memcmp(words + 2, &(unsigned long long){ wide + round }, 8));
		REQUIRE(words[4] == 31 && words[5] == 32 && words[6] == 6 + round && words[999] == 999 + round);
	}
	CHECK(cuCtxGetCurrent(&params.ctx));
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &params));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	words[4] = 1;
	words[6] = 2;
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(words[4] == 31 && words[5] == 32 && words[6] == 2);
	/* Into a captured stream, too. */
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	CHECK(cuStreamWriteValue32_v2(stream, at + 24, 77, 0));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	words[7] = 8;
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(words[6] == 77 && words[7] == 8);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

static void refused(CUdeviceptr at, CUdeviceptr device)
{
	CUstreamBatchMemOpParams ops[2] = { writing(device, 5), waiting(CU_STREAM_MEM_OP_WAIT_VALUE_32, at) };
	CUstreamBatchMemOpParams plain = writing(device, 6);
	CUDA_BATCH_MEM_OP_NODE_PARAMS params = { .count = 2, .paramArray = ops };
	CUgraphNodeParams any = { .type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP };
	CUgraphExec executable;
	CUgraphNode node;
	CUgraph graph;

	EXPECT(cuStreamWaitValue32_v2(stream, at, 0, CU_STREAM_WAIT_VALUE_EQ), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuStreamWaitValue64_v2(stream, at, 0, CU_STREAM_WAIT_VALUE_EQ), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuStreamBatchMemOp_v2(stream, 2, ops, 0), CUDA_ERROR_NOT_SUPPORTED);
	/* Nothing of it was begun. */
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(device), 0);
	CHECK(cuCtxGetCurrent(&params.ctx));
	any.memOp.ctx = params.ctx;
	any.memOp.count = 2;
	any.memOp.paramArray = ops;
	CHECK(cuGraphCreate(&graph, 0));
	EXPECT(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &params), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &any), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &any), CUDA_ERROR_NOT_SUPPORTED);
	any.memOp.count = params.count = 1;
	any.memOp.paramArray = params.paramArray = &plain;
	CHECK(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &params));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	ops[0] = waiting(CU_STREAM_MEM_OP_WAIT_VALUE_64, at);
	any.memOp.paramArray = params.paramArray = ops;
	EXPECT(cuGraphBatchMemOpNodeSetParams(node, &params), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuGraphExecBatchMemOpNodeSetParams(executable, node, &params), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuGraphNodeSetParams(node, &any), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuGraphExecNodeSetParams(executable, node, &any), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(device), 6);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

int main(void)
{
	CUdeviceptr managed;
	void *pinned;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	CHECK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
	written(pinned);
	written((unsigned *)(uintptr_t)managed);
	refused((CUdeviceptr)(uintptr_t)pinned + 4000, words(1, 0));
	refused(managed + 4000, words(1, 0));
	printf("ok\n");
	return 0;
}
