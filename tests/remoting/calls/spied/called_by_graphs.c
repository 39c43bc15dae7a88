/* Graphs whose runs call this process: a host function that is captured, a node of one, a copy to memory here. */
#include "../calls.h"

static int called;

static void count(void *argument)
{
	called += *(int *)argument;
}

int main(void)
{
	static int one = 1, ten = 10;
	const CUDA_HOST_NODE_PARAMS params = { .fn = count, .userData = &ten };
	CUgraphExec executable;
	CUgraphNode node;
	CUgraph graph;
	CUdeviceptr device;
	CUstream stream;
	int word = 0;

	begin();
	CHECK(cuMemAlloc_v2(&device, sizeof(word)));
	CHECK(cuMemsetD32_v2(device, 7, 1));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuLaunchHostFunc(stream, count, &one));
	CHECK(cuMemcpyDtoHAsync_v2(&word, device, sizeof(word), stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphAddHostNode(&node, graph, NULL, 0, &params));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuGraphDestroy(graph));
	for (int i = 0; i < 3; i++)
		CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(called, 33);
	REQUIRE_EQUAL(word, 7);
	puts("ok");
	return 0;
}
