/* What a stream is given while it captures does not run, but becomes a chain of nodes; the graph does
 * it as often as it is launched. */
#include "graph.h"

static int calls;

static void on_host(void *argument)
{
	calls += *(int *)argument;
}

int main(void)
{
	static const CUgraphNodeType types[] = {
		CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY,
		CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_HOST,
	};
	CUdeviceptr a, b;
	CUstreamCaptureStatus status;
	CUgraphNode nodes[8], dependency;
	CUgraphExec executable, nested;
	cuuint64_t id, other_id;
	unsigned *pinned, seen;
	CUgraph graph, during;
	CUstream stream;
	size_t count = 8, one = 1;
	int argument = 1;

	begin();
	a = new_word(0);
	b = new_word(0);
	CHECK(cuMemHostAlloc((void **)&pinned, 4, 0));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamIsCapturing(stream, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
	CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	EXPECT(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
	*pinned = 1;
	CHECK(cuMemcpyHtoDAsync(a, pinned, 4, stream));
	CHECK(launch_store(kernel("store"), b, 5, stream));
	CHECK(cuMemcpyDtoDAsync(b, a, 4, stream));
	CHECK(cuMemsetD32Async(a, 9, 1, stream));
	CHECK(cuLaunchHostFunc(stream, on_host, &argument));
	CHECK(cuStreamGetCaptureInfo(stream, &status, &id, &during, NULL, NULL, NULL));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	EXPECT(cuGraphDestroy(during), CUDA_ERROR_INVALID_VALUE);
	graph = end_capture(stream);
	REQUIRE(graph == during);
	EXPECT(cuStreamEndCapture(stream, &during), CUDA_ERROR_ILLEGAL_STATE);
	REQUIRE_EQUAL(calls, 0);
	REQUIRE_EQUAL(word_at(a), 0);

	CHECK(cuGraphGetNodes(graph, nodes, &count));
	REQUIRE_EQUAL(count, 5);
	for (size_t i = 0; i < 5; i++) {
		CUgraphNodeType type;

		CHECK(cuGraphNodeGetType(nodes[i], &type));
		REQUIRE_EQUAL(type, types[i]);
		if (i) {
			CHECK(cuGraphNodeGetDependencies(nodes[i], &dependency, NULL, &one));
			REQUIRE(dependency == nodes[i - 1]);
		}
	}
	executable = instantiate(graph);
	for (unsigned i = 2; i < 5; i++) {
		*pinned = i;	/* read at each launch */
		run(executable, stream);
		REQUIRE_EQUAL(word_at(a), 9);
		REQUIRE_EQUAL(word_at(b), i);
	}
	REQUIRE_EQUAL(calls, 3);

	/* A launch that is captured is a child graph. */
	CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuStreamGetCaptureInfo(stream, &status, &other_id, NULL, NULL, NULL, NULL));
	REQUIRE(other_id != id);
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuMemcpyDtoHAsync(&seen, b, 4, stream));
	graph = end_capture(stream);
	nested = instantiate(graph);
	CHECK(cuGraphExecDestroy(executable));
	*pinned = 50;
	run(nested, stream);
	REQUIRE_EQUAL(seen, 50);
	REQUIRE_EQUAL(calls, 4);
	return 0;
}
