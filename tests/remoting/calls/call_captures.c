/* Captured streams: what is captured, asked about, ordered by hand; copies and host functions
 * of this process happen anew whenever the graph runs. */
#include "calls.h"

static CUstream stream;
static CUdeviceptr word;

static void run(CUgraph graph, int times)
{
	CUgraphExec executable;

	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	while (times--)
		CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuGraphExecDestroy(executable));
}

static void note(void *argument)
{
	++*(int *)argument;
}

static void test_questions(void)
{
	CUstreamCaptureStatus status;
	const CUgraphNode *behind;
	const CUgraphEdgeData *edges;
	CUgraph graph, asked;
	CUgraphNode first, second;
	cuuint64_t id, again;
	size_t count;

	CHECK(cuStreamIsCapturing(stream, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuStreamIsCapturing(stream, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	CHECK(cuMemsetD32Async(word, 1, 1, stream));
	CHECK(cuStreamGetCaptureInfo(stream, &status, &id));
	CHECK(cuStreamGetCaptureInfo_v2(stream, &status, &again, &asked, &behind, &count));
	REQUIRE(id == again && count == 1);
	first = behind[0];
	CHECK(cuMemsetD32Async(word, 2, 1, stream));
	CHECK(cuStreamGetCaptureInfo_v3(stream, &status, &again, &asked, &behind, &edges, &count));
	REQUIRE(count == 1 && behind[0] != first);
	second = behind[0];
	CHECK(cuStreamUpdateCaptureDependencies(stream, &first, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
	CHECK(cuStreamGetCaptureInfo_v2(stream, &status, &again, &asked, &behind, &count));
	REQUIRE_EQUAL(count, 2);
	CHECK(cuStreamUpdateCaptureDependencies_v2(stream, &second, NULL, 1,
						   CU_STREAM_SET_CAPTURE_DEPENDENCIES));
	CHECK(cuStreamEndCapture(stream, &graph));
	REQUIRE(graph == asked);
	CHECK(cuGraphGetNodes(graph, NULL, &count));
	REQUIRE_EQUAL(count, 2);
	run(graph, 1);
	REQUIRE_EQUAL(word_at(word), 2);
	CHECK(cuGraphDestroy(graph));
}

static void test_into_graph(void)
{
	CUgraph graph, ended;
	CUgraphNode empty;
	size_t count;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddEmptyNode(&empty, graph, NULL, 0));
	CHECK(cuStreamBeginCaptureToGraph(stream, graph, &empty, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuMemsetD32Async(word, 9, 1, stream));
	CHECK(cuStreamEndCapture(stream, &ended));
	REQUIRE(ended == graph);
	CHECK(cuGraphNodeGetDependentNodes(empty, NULL, &count));
	REQUIRE_EQUAL(count, 1);
	run(graph, 1);
	REQUIRE_EQUAL(word_at(word), 9);
	CHECK(cuGraphDestroy(graph));
}

static void test_this_process(void)
{
	static int calls; /* not on the stack: as in call_graphs.c */
	int *source, *back;
	CUgraphExec executable;
	CUgraph graph;

	CHECK(cuMemAllocHost_v2((void **)&source, 4));
	CHECK(cuMemAllocHost_v2((void **)&back, 4));
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuMemcpyHtoDAsync_v2(word, source, 4, stream));
	CHECK(cuLaunchHostFunc(stream, note, &calls));
	CHECK(cuMemcpyDtoHAsync_v2(back, word, 4, stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	for (int i = 0; i < 5; i++) {
		*source = 100 + i;
		CHECK(cuGraphLaunch(executable, stream));
		CHECK(cuStreamSynchronize(stream));
		REQUIRE_EQUAL(*back, 100 + i);
		REQUIRE_EQUAL(calls, i + 1);
	}
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuMemFreeHost(source));
	CHECK(cuMemFreeHost(back));
}

static void test_mode(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUdeviceptr memory;
	CUgraph graph;

	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuThreadExchangeStreamCaptureMode(&mode));
	REQUIRE_EQUAL(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
	CHECK(cuMemAlloc_v2(&memory, 4));
	CHECK(cuThreadExchangeStreamCaptureMode(&mode));
	EXPECT(cuMemAlloc_v2(&memory, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EXPECT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	REQUIRE(!graph);

	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EXPECT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

	CHECK(cuStreamBeginCapture(stream));
	CHECK(cuMemsetD32Async(word, 30, 1, stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	run(graph, 2);
	REQUIRE_EQUAL(word_at(word), 30);
	CHECK(cuGraphDestroy(graph));
}

int main(void)
{
	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	word = words(1, 0);
	test_questions();
	test_into_graph();
	test_this_process();
	test_mode();
	return 0;
}
