/* Streams join a capture by waiting for its events, and are as before when it ends; work that is not
 * joined to the first stream is an error; streams' dependencies can be changed by hand. */
#include "graph.h"

static CUstream origin, side, third;
static CUevent forked, joined;
static CUdeviceptr words[3];

static void test_fork_and_join(void)
{
	CUgraphNode nodes[4], found[2];
	CUstreamCaptureStatus status;
	CUgraphExec executable;
	CUgraph graph;
	size_t count = 4;

	CHECK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuMemsetD32Async(words[0], 1, 1, origin));
	CHECK(cuEventRecord(forked, origin));
	CHECK(cuStreamWaitEvent(side, forked, 0));
	CHECK(cuStreamIsCapturing(side, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	CHECK(cuMemcpyDtoDAsync(words[1], words[0], 4, side));
	CHECK(cuMemcpyDtoDAsync(words[2], words[0], 4, origin));
	CHECK(cuEventRecord(joined, side));
	CHECK(cuStreamWaitEvent(origin, joined, 0));
	CHECK(cuMemsetD32Async(words[0], 2, 1, origin));
	graph = end_capture(origin);
	CHECK(cuStreamIsCapturing(side, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
	CHECK(cuGraphGetNodes(graph, nodes, &count));
	REQUIRE_EQUAL(count, 4);
	count = 2;
	CHECK(cuGraphNodeGetDependencies(nodes[3], found, NULL, &count));
	REQUIRE_EQUAL(count, 2);
	executable = instantiate(graph);
	run(executable, side);
	REQUIRE_EQUAL(word_at(words[0]), 2);
	REQUIRE_EQUAL(word_at(words[1]), 1);
	REQUIRE_EQUAL(word_at(words[2]), 1);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

static void test_unjoined(void)
{
	CUstreamCaptureStatus status;
	CUgraph graph = (CUgraph)1;

	CHECK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuEventRecord(forked, origin));
	CHECK(cuStreamWaitEvent(side, forked, 0));
	CHECK(cuMemsetD32Async(words[0], 1, 1, side));
	EXPECT(cuStreamEndCapture(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	REQUIRE(!graph);
	CHECK(cuStreamIsCapturing(side, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
	CHECK(cuMemsetD32Async(words[0], 3, 1, side));
	CHECK(cuStreamSynchronize(side));
}

static void test_dependencies_by_hand(void)
{
	const CUgraphNode *dependencies;
	CUstreamCaptureStatus status;
	CUgraphNode own, first;
	CUgraph graph;
	size_t count;

	CHECK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuMemsetD32Async(words[0], 1, 1, origin));
	CHECK(cuStreamGetCaptureInfo(origin, &status, NULL, &graph, &dependencies, NULL, &count));
	REQUIRE_EQUAL(count, 1);
	first = dependencies[0];
	own = add_store(graph, first, words[1], 2);
	CHECK(cuStreamUpdateCaptureDependencies(origin, &own, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
	CHECK(cuStreamGetCaptureInfo(origin, &status, NULL, &graph, &dependencies, NULL, &count));
	REQUIRE_EQUAL(count, 1);
	REQUIRE(dependencies[0] == own);
	CHECK(cuStreamUpdateCaptureDependencies(origin, &first, NULL, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
	CHECK(cuStreamGetCaptureInfo(origin, &status, NULL, &graph, &dependencies, NULL, &count));
	REQUIRE_EQUAL(count, 2);
	CHECK(cuGraphDestroy(end_capture(origin)));
	EXPECT(cuStreamUpdateCaptureDependencies(origin, &first, NULL, 1, 0), CUDA_ERROR_ILLEGAL_STATE);
}

/* What the program added, behind what a stream captured and joined, needs no joining. */
static void test_left_behind(void)
{
	CUgraphNode last, kept;
	const CUgraphNode *dependencies;
	CUstreamCaptureStatus status;
	CUgraphExec executable;
	CUgraph graph;
	size_t count;

	CHECK(cuMemsetD32(words[1], 0, 1));
	CHECK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuEventRecord(forked, origin));
	CHECK(cuStreamWaitEvent(side, forked, 0));
	CHECK(cuMemsetD32Async(words[0], 1, 1, side));
	CHECK(cuEventRecord(joined, side));
	CHECK(cuStreamWaitEvent(origin, joined, 0));
	CHECK(cuStreamGetCaptureInfo(side, &status, NULL, &graph, &dependencies, NULL, &count));
	REQUIRE_EQUAL(count, 1);
	kept = dependencies[0];
	last = add_store(graph, kept, words[1], 4);
	CHECK(cuStreamUpdateCaptureDependencies(side, &last, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
	graph = end_capture(origin);
	executable = instantiate(graph);
	run(executable, origin);
	REQUIRE_EQUAL(word_at(words[1]), 4);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

/* Into a graph that the program has, behind a node of it. */
static void test_into_graph(void)
{
	CUgraphExec executable;
	CUgraphNode first;
	CUgraph graph, found;

	CHECK(cuGraphCreate(&graph, 0));
	first = add_store(graph, NULL, words[0], 7);
	CHECK(cuStreamBeginCaptureToGraph(origin, graph, &first, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuMemcpyDtoDAsync(words[1], words[0], 4, origin));
	EXPECT(cuGraphInstantiate(&executable, graph, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuStreamEndCapture(origin, &found));
	REQUIRE(found == graph);
	executable = instantiate(graph);
	run(executable, origin);
	REQUIRE_EQUAL(word_at(words[1]), 7);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

/* External records and waits are nodes, and leave the capture as it is. */
static void test_external(void)
{
	CUstreamCaptureStatus status;
	CUgraphExec executable;
	CUgraph graph;

	EXPECT(cuEventRecordWithFlags(forked, origin, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuEventRecord(joined, third));
	CHECK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuStreamWaitEvent(origin, joined, CU_EVENT_WAIT_EXTERNAL));
	CHECK(cuMemsetD32Async(words[2], 60, 1, origin));
	CHECK(cuEventRecordWithFlags(forked, origin, CU_EVENT_RECORD_EXTERNAL));
	graph = end_capture(origin);
	executable = instantiate(graph);
	CHECK(cuGraphLaunch(executable, origin));
	CHECK(cuStreamWaitEvent(third, forked, 0));
	CHECK(cuStreamIsCapturing(third, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
	CHECK(cuStreamSynchronize(third));
	CHECK(cuEventSynchronize(forked));
	REQUIRE_EQUAL(word_at(words[2]), 60);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

/* A stream that joined may go before the end, if nothing of it is left to join. */
static void test_destroyed_stream(void)
{
	CUstream passing;
	CUgraph graph;

	for (int joins = 0; joins < 2; joins++) {
		CHECK(cuStreamCreate(&passing, CU_STREAM_NON_BLOCKING));
		CHECK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
		CHECK(cuEventRecord(forked, origin));
		CHECK(cuStreamWaitEvent(passing, forked, 0));
		CHECK(cuMemsetD32Async(words[0], 1, 1, passing));
		if (joins) {
			CHECK(cuEventRecord(joined, passing));
			CHECK(cuStreamWaitEvent(origin, joined, 0));
		}
		CHECK(cuStreamDestroy(passing));
		EXPECT(cuStreamEndCapture(origin, &graph),
		       joins ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	}
	CHECK(cuGraphDestroy(graph));
	/* Where it began, the capture ends with it. */
	CHECK(cuStreamCreate(&passing, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamBeginCapture(passing, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuEventRecord(forked, passing));
	CHECK(cuStreamWaitEvent(side, forked, 0));
	CHECK(cuStreamDestroy(passing));
	CHECK(cuMemsetD32Async(words[0], 1, 1, side));
	CHECK(cuStreamSynchronize(side));
}

/* It may also go when another stream that is still to join has joined it. */
static void test_destroyed_in_between(void)
{
	CUstream passing;
	CUgraph graph;
	size_t count;

	CHECK(cuStreamCreate(&passing, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuMemsetD32Async(words[2], 1, 1, origin));
	CHECK(cuEventRecord(forked, origin));
	CHECK(cuStreamWaitEvent(side, forked, 0));
	CHECK(cuMemsetD32Async(words[1], 1, 1, side));
	CHECK(cuEventRecord(forked, side));
	CHECK(cuStreamWaitEvent(passing, forked, 0));
	CHECK(cuMemsetD32Async(words[0], 1, 1, passing));
	CHECK(cuEventRecord(joined, passing));
	CHECK(cuStreamWaitEvent(side, joined, 0));
	CHECK(cuStreamDestroy(passing));
	CHECK(cuMemsetD32Async(words[1], 2, 1, side));
	CHECK(cuEventRecord(joined, side));
	CHECK(cuStreamWaitEvent(origin, joined, 0));
	graph = end_capture(origin);
	CHECK(cuGraphGetNodes(graph, NULL, &count));
	REQUIRE_EQUAL(count, 4);
	CHECK(cuGraphDestroy(graph));
}

int main(void)
{
	begin();
	CHECK(cuStreamCreate(&origin, 0));
	CHECK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
	for (int i = 0; i < 3; i++)
		words[i] = new_word(0);
	test_fork_and_join();
	test_unjoined();
	test_left_behind();
	test_dependencies_by_hand();
	test_into_graph();
	test_external();
	test_destroyed_stream();
	test_destroyed_in_between();
	return 0;
}
