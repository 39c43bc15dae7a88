/* Which call tells what is wrong, and which do not: found by random calls, natively and through the shim. */
#include "calls.h"

static CUcontext primary;

static void nothing(void *unused)
{
	(void)unused;
}

static CUgraph no_graph(CUstream stream, CUresult expected)
{
	CUgraph graph = NULL;

	EXPECT(cuStreamEndCapture(stream, &graph), expected);
	REQUIRE(!graph);
	return graph;
}

/* What makes something tells how that went, whatever was refused before it. */
static void test_made_behind_what_was_refused(void)
{
	CUstream stream, others[40];
	CUdeviceptr word;
	CUmodule module;
	CUevent event;
	CUgraph graph;

	CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	/* The legacy stream would wait for the captured one: natively it is this call that says so. */
	cuLaunchHostFunc(NULL, nothing, NULL);
	CHECK(cuModuleLoadData(&module, code));
	CHECK(cuMemAlloc_v2(&word, 4));
	CHECK(cuGraphCreate(&graph, 0));
	for (int i = 0; i < 40; i++)
		CHECK(cuStreamCreate(&others[i], CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	for (int i = 0; i < 40; i++)
		CHECK(cuStreamDestroy_v2(others[i]));
	CHECK(cuEventDestroy_v2(event));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuMemFree_v2(word));
	CHECK(cuModuleUnload(module));
	no_graph(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK(cuStreamDestroy_v2(stream));
	/* Over remoting it is said here. */
	cuCtxSynchronize();
	CHECK(cuCtxSynchronize());
}

/* While something is captured, each call says itself what a capture forbids. */
static void test_in_captures(void)
{
	const CUresult implicit = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, invalidated = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	CUdeviceptr from = words(4, 1), to = words(4, 2), taken;
	CUstream stream, other;
	CUevent event;

	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
	CHECK(cuStreamCreate(&other, CU_STREAM_DEFAULT));
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
	EXPECT(cuMemcpyDtoDAsync_v2(to, from, 16, NULL), implicit);
	EXPECT(cuMemcpyDtoDAsync_v2(to, from, 16, stream), invalidated);
	EXPECT(cuMemsetD32Async(to, 3, 4, stream), invalidated);
	EXPECT(cuMemsetD2D8Async(to, 4, 3, 2, 4, other), invalidated);
	EXPECT(cuEventRecord(event, stream), invalidated);
	EXPECT(cuMemcpyDtoDAsync_v2(to, from, 16, other), invalidated);
	/* Captures that are lost forbid nothing. */
	CHECK(cuMemAlloc_v2(&taken, 4));
	CHECK(cuMemFree_v2(taken));
	no_graph(stream, invalidated);
	no_graph(other, invalidated);
	/* What is forbidden ends all captures that forbid it. */
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
	EXPECT(cuMemAlloc_v2(&taken, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	no_graph(other, invalidated);
	no_graph(stream, invalidated);
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(word_at(to), 2);
	CHECK(cuStreamDestroy_v2(stream));
	CHECK(cuStreamDestroy_v2(other));
	CHECK(cuEventDestroy_v2(event));
}

static void test_outside_of_captures(void)
{
	CUstream stream;
	CUevent event;

	CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventRecord(event, stream));
	EXPECT(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuEventDestroy_v2(event));
	CHECK(cuStreamDestroy_v2(stream));
}

/* Only where no second row makes it matter may a pitch be zero. */
static void test_pitches(void)
{
	CUdeviceptr memory = words(64, 5);
	unsigned char host[256] = { 0 };
	CUDA_MEMCPY2D rows = { .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = 16,
			       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory, .WidthInBytes = 8,
			       .Height = 1 };
	CUDA_MEMCPY3D box = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = memory, .srcPitch = 16, .srcY = 1,
			      .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = host, .dstPitch = 8, .dstHeight = 2,
			      .WidthInBytes = 8, .Height = 2, .Depth = 2 };
	CUgraphNode node;
	CUgraph graph;

	CHECK(cuMemcpy2D_v2(&rows));
	rows.Height = 2;
	EXPECT(cuMemcpy2D_v2(&rows), CUDA_ERROR_INVALID_VALUE);
	rows.Height = 1;
	rows.dstY = 1;
	EXPECT(cuMemcpy2D_v2(&rows), CUDA_ERROR_INVALID_VALUE);
	rows.dstPitch = 4;
	EXPECT(cuMemcpy2D_v2(&rows), CUDA_ERROR_INVALID_VALUE);
	/* Without a height slices lie behind all rows that are named: rows 1, 2 and 4, 5 here. */
	for (unsigned row = 0; row < 6; row++)
		CHECK(cuMemsetD8_v2(memory + 16 * row, (unsigned char)row, 16));
	CHECK(cuMemcpy3D_v2(&box));
	for (unsigned row = 0; row < 4; row++)
		REQUIRE_EQUAL(host[8 * row], row < 2 ? row + 1 : row + 2);
	CHECK(cuGraphCreate(&graph, 0));
	box.Depth = 1;
	box.srcLOD = 1;
	EXPECT(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &box, primary), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphDestroy(graph));
	CHECK(cuMemFree_v2(memory));
}

static void test_pitches_beside_arrays(void)
{
	const CUDA_ARRAY_DESCRIPTOR shape = { .Width = 8, .Height = 2, .Format = CU_AD_FORMAT_UNSIGNED_INT8,
					      .NumChannels = 1 };
	CUdeviceptr memory = words(64, 0x05050505);
	unsigned char host[64];
	CUDA_MEMCPY2D in = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = memory, .srcXInBytes = 3,
			     .dstMemoryType = CU_MEMORYTYPE_ARRAY, .WidthInBytes = 4, .Height = 1 };
	CUDA_MEMCPY2D out = { .srcMemoryType = CU_MEMORYTYPE_ARRAY, .dstMemoryType = CU_MEMORYTYPE_HOST,
			      .dstHost = host, .dstPitch = 8, .WidthInBytes = 8, .Height = 2 };
	CUarray array;

	CHECK(cuArrayCreate_v2(&array, &shape));
	in.dstArray = out.srcArray = array;
	CHECK(cuMemcpy2D_v2(&in));
	CHECK(cuMemcpy2D_v2(&out));
	REQUIRE_EQUAL(host[3], 5);
	in.Height = 2;
	EXPECT(cuMemcpy2D_v2(&in), CUDA_ERROR_INVALID_VALUE);
	in.srcMemoryType = CU_MEMORYTYPE_HOST;
	in.srcHost = host;
	in.srcPitch = 4;
	EXPECT(cuMemcpy2D_v2(&in), CUDA_ERROR_INVALID_VALUE);
	out.dstPitch = 4;
	EXPECT(cuMemcpy2D_v2(&out), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuArrayDestroy(array));
	CHECK(cuMemFree_v2(memory));
}

/* A list without a place for its length. */
static void test_lists(void)
{
	CUgraphNode from[4], to[4];
	CUgraphEdgeData edges[4];
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	EXPECT(cuGraphGetEdges_v2(graph, from, to, edges, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphDestroy(graph));
}

/* A cluster that is the kernel's own, as one that a launch names. */
static void test_clusters(void)
{
	CUfunction store = store_kernel();
	CUdeviceptr word = words(1, 0);
	unsigned value = 3;
	void *parameters[] = { &word, &value };

	CHECK(cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2));
	for (int times = 0; times < 2; times++) {
		EXPECT(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL),
		       CUDA_ERROR_INVALID_CLUSTER_SIZE);
		CHECK(cuLaunchKernel(store, 4, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	}
	EXPECT(cuLaunchKernel(store, 3, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), CUDA_ERROR_INVALID_CLUSTER_SIZE);
	CHECK(cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 0));
	CHECK(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	REQUIRE_EQUAL(word_at(word), 3);
	CHECK(cuMemFree_v2(word));
}

/* A module's function is its context's alone. */
static void test_functions_of_another_context(void)
{
	CUfunction store = store_kernel();
	CUdeviceptr address = 0;
	unsigned value = 1;
	CUcontext other;
	int peer;

	CHECK(cuFuncSetSharedMemConfig(store, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
	EXPECT(cuFuncSetSharedMemConfig(store, 3), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuCtxCreate_v2(&other, 0, 0));
	EXPECT(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){ &address, &value }, NULL),
	       CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuCtxSynchronize());
	CHECK(cuCtxPushCurrent_v2(other));
	CHECK(cuCtxDestroy_v2(other));
	/* What needs no context finds none that is missing. */
	CHECK(cuDeviceCanAccessPeer(&peer, 0, 1));
	EXPECT(cuMemAlloc_v2(&address, 4), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	CHECK(cuCtxSetCurrent(primary));
}

int main(void)
{
	primary = begin();
	test_made_behind_what_was_refused();
	test_in_captures();
	test_outside_of_captures();
	test_pitches();
	test_pitches_beside_arrays();
	test_lists();
	test_clusters();
	test_functions_of_another_context();
	return 0;
}
