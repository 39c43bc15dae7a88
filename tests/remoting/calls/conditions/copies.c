/* Copies between the GPU and memory of the program in a body: refused where they are added, captured or not; the body
 * goes without them, and such copies around the node are as ever. */
#include "../conditions.h"

int main(int argc, char **argv)
{
	CUDA_MEMCPY3D copy = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_HOST,
		.WidthInBytes = 4, .Height = 1, .Depth = 1,
	};
	CUgraphConditionalHandle condition;
	CUgraph graph, body, same;
	CUdeviceptr word;
	CUgraphNode node, copied;
	const CUresult taken = argc > 1 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
	unsigned *pinned;
	CUstream stream;

	(void)argv;
	begin();
	word = words(1, 4);
	CHECK(cuMemHostAlloc((void **)&pinned, 4, 0));
	*pinned = 0;
	copy.srcDevice = word;
	copy.dstHost = pinned;
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuGraphCreate(&graph, 0));
	condition = condition_of(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
	node = add_conditional(graph, NULL, condition, CU_GRAPH_COND_TYPE_IF, 1, &body);

	CHECK(cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(cuMemcpyDtoHAsync_v2(pinned, word, 4, stream), taken);
	/* what is added is what is there */
	if (taken != CUDA_SUCCESS)
		EXPECT(cuMemcpyHtoDAsync_v2(word, pinned, 4, stream), taken);
	CHECK(cuStreamEndCapture(stream, &same));
	EXPECT(cuGraphAddMemcpyNode(&copied, body, NULL, 0, &copy, NULL), taken);
	add_add(body, NULL, word, 1);

	CHECK(cuStreamBeginCaptureToGraph(stream, graph, &node, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuMemcpyDtoHAsync_v2(pinned, word, 4, stream));
	CHECK(cuStreamEndCapture(stream, &same));
	CHECK(cuGraphLaunch(executable_of(graph), stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(*pinned, 5);
	return 0;
}
