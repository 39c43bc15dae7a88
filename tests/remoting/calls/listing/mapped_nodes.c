/* Copies between pinned memory and the device in graphs are told as the program has named them, and change by what it
 * changes of that. */
#include "../calls.h"

#define BYTES 256u

static unsigned *pinned(unsigned value)
{
	void *memory;

	CHECK(cuMemHostAlloc(&memory, BYTES, CU_MEMHOSTALLOC_DEVICEMAP));
	*(unsigned *)memory = value;
	return memory;
}

static void expect_run(CUgraphExec run, CUstream stream, const unsigned *out, unsigned value)
{
	CHECK(cuGraphLaunch(run, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(*out, value);
}

static void expect_sides(const CUDA_MEMCPY3D *copy, const unsigned *in, const unsigned *out)
{
	REQUIRE_EQUAL(copy->srcMemoryType, in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
	REQUIRE_EQUAL(copy->dstMemoryType, out ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
	REQUIRE(!in || copy->srcHost == in);
	REQUIRE(!out || copy->dstHost == out);
}

int main(void)
{
	CUcontext context = begin();
	unsigned *in = pinned(1), *other = pinned(2), *out = pinned(0), *apart = pinned(0);
	CUgraphNodeParams params = { .type = CU_GRAPH_NODE_TYPE_MEMCPY };
	CUgraphNode all[2], to_device, to_host;
	CUDA_MEMCPY3D copy;
	size_t count = 2;
	CUdeviceptr device;
	CUgraphExec run;
	CUstream stream;
	CUgraph graph;

	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAlloc_v2(&device, BYTES));
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuMemcpyHtoDAsync_v2(device, in, BYTES, stream));
	CHECK(cuMemcpyDtoHAsync_v2(out, device, BYTES, stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphInstantiateWithFlags(&run, graph, 0));
	CHECK(cuGraphGetNodes(graph, all, &count));
	REQUIRE_EQUAL(count, 2);
	count = 1;
	CHECK(cuGraphGetRootNodes(graph, &to_device, &count));
	to_host = all[all[0] == to_device];
	CHECK(cuGraphMemcpyNodeGetParams(to_host, &copy));
	expect_sides(&copy, NULL, out);
	CHECK(cuGraphMemcpyNodeGetParams(to_device, &copy));
	expect_sides(&copy, in, NULL);
	/* What is told is given back, changed. */
	copy.srcHost = other;
	CHECK(cuGraphExecMemcpyNodeSetParams(run, to_device, &copy, context));
	expect_run(run, stream, out, 2);
	params.memcpy.copyParams = copy;
	params.memcpy.copyParams.srcHost = in;
	params.memcpy.copyCtx = context;
	CHECK(cuGraphExecNodeSetParams(run, to_device, &params));
	REQUIRE_EQUAL(params.memcpy.copyParams.srcMemoryType, CU_MEMORYTYPE_HOST);
	expect_run(run, stream, out, 1);
	CHECK(cuGraphExecDestroy(run));
	/* A graph's, before it is instantiated. */
	params.memcpy.copyParams.srcHost = other;
	CHECK(cuGraphNodeSetParams(to_device, &params));
	memset(&params, 0, sizeof(params));
	CHECK(cuGraphNodeGetParams(to_host, &params));
	expect_sides(&params.memcpy.copyParams, NULL, out);
	copy = params.memcpy.copyParams;
	copy.dstHost = apart;
	CHECK(cuGraphMemcpyNodeSetParams(to_host, &copy));
	CHECK(cuGraphInstantiateWithFlags(&run, graph, 0));
	expect_run(run, stream, apart, 2);
	REQUIRE_EQUAL(*out, 1);
	CHECK(cuGraphExecDestroy(run));
	CHECK(cuGraphDestroy(graph));
	printf("ok\n");
	return 0;
}
