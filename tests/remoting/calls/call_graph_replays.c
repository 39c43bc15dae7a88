/* Graphs that are launched again and again: what each launch does, and what ends that. */
#include "calls.h"

#include <pthread.h>
#include <sched.h>

#define REPLAYS 100u
#define THREADS 4

/* increment(address of an address): one more in the word that is found there */
static const char increment_code[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry increment(.param .u64 pa)\n"
"{\n"
"	.reg .b32 %r<2>;\n"
"	.reg .b64 %rd<3>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	ld.global.u64 %rd2, [%rd1];\n"
"	ld.global.u32 %r1, [%rd2];\n"
"	add.u32 %r1, %r1, 1;\n"
"	st.global.u32 [%rd2], %r1;\n"
"	ret;\n"
"}\n";

static CUcontext primary;
static CUfunction increment;

static CUfunction load(CUmodule *module)
{
	CUfunction function;

	CHECK(cuModuleLoadData(module, increment_code));
	CHECK(cuModuleGetFunction(&function, *module, "increment"));
	return function;
}

static CUstream new_stream(void)
{
	CUstream stream;

	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

/* Device memory that holds an address. */
static CUdeviceptr pointer_to(CUdeviceptr address)
{
	CUdeviceptr pointer;

	CHECK(cuMemAlloc_v2(&pointer, sizeof(address)));
	CHECK(cuMemcpyHtoD_v2(pointer, &address, sizeof(address)));
	return pointer;
}

static CUgraphExec instantiate(CUgraph graph)
{
	CUgraphExec executable;

	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	return executable;
}

static CUDA_KERNEL_NODE_PARAMS kernel_params(CUfunction function, void **params)
{
	return (CUDA_KERNEL_NODE_PARAMS){ .func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
					  .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,
					  .kernelParams = params };
}

/* A graph that increments what `pointer` leads to. */
static CUgraph incrementing(CUfunction function, CUdeviceptr pointer, CUgraphNode *node)
{
	CUDA_KERNEL_NODE_PARAMS params = kernel_params(function, (void *[]){ &pointer });
	CUgraphNode own;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddKernelNode_v2(node ? node : &own, graph, NULL, 0, &params));
	return graph;
}

static CUgraph filling(CUdeviceptr word, unsigned value, CUgraphNode *node)
{
	CUDA_MEMSET_NODE_PARAMS fill = { .dst = word, .elementSize = 4, .value = value, .width = 1,
					 .height = 1 };
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemsetNode(node, graph, NULL, 0, &fill, primary));
	return graph;
}

/* Each replay copies what its source holds then. */
static void test_inputs(CUstream stream)
{
	CUdeviceptr source = words(1, 0), target = words(1, 0), seen = words(REPLAYS, 0);
	CUDA_MEMCPY3D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = source,
			       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = target,
			       .WidthInBytes = 4, .Height = 1, .Depth = 1 };
	unsigned back[REPLAYS];
	CUgraphExec executable;
	CUgraphNode node;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, primary));
	executable = instantiate(graph);
	CHECK(cuGraphDestroy(graph));
	/* The words were filled in the legacy stream, for which the others here do not wait. */
	CHECK(cuStreamSynchronize(NULL));
	for (unsigned i = 0; i < REPLAYS; i++) {
		CHECK(cuMemsetD32Async(source, 1000 + i, 1, stream));
		CHECK(cuGraphLaunch(executable, stream));
		CHECK(cuMemcpyDtoDAsync_v2(seen + 4 * i, target, 4, stream));
	}
	CHECK(cuMemcpyDtoHAsync_v2(back, seen, sizeof(back), stream));
	CHECK(cuStreamSynchronize(stream));
	for (unsigned i = 0; i < REPLAYS; i++)
		REQUIRE_EQUAL(back[i], 1000 + i);
	CHECK(cuGraphExecDestroy(executable));
}

static void launch_and_keep(CUgraphExec executable, CUdeviceptr word, CUdeviceptr kept)
{
	CHECK(cuGraphLaunch(executable, NULL));
	CHECK(cuMemcpyDtoDAsync_v2(kept, word, 4, NULL));
}

/* The replay behind an update does what it says now, the ones before what it said. */
static void test_updates(void)
{
	CUdeviceptr word = words(1, 0), seen = words(9, 0);
	CUDA_MEMSET_NODE_PARAMS fill = { .dst = word, .elementSize = 4, .width = 1, .height = 1 };
	CUgraphExecUpdateResultInfo info;
	CUgraph graph, other;
	CUgraphExec executable;
	CUgraphNode node, again;
	unsigned back[9];

	graph = filling(word, 10, &node);
	executable = instantiate(graph);
	for (unsigned i = 0; i < 3; i++) {
		fill.value = 10 + i;
		CHECK(cuGraphExecMemsetNodeSetParams(executable, node, &fill, primary));
		for (unsigned j = 0; j < 2; j++)
			launch_and_keep(executable, word, seen + 4 * (2 * i + j));
	}
	other = filling(word, 20, &again);
	CHECK(cuGraphExecUpdate_v2(executable, other, &info));
	CHECK(cuGraphDestroy(other));
	for (unsigned i = 6; i < 9; i++)
		launch_and_keep(executable, word, seen + 4 * i);
	CHECK(cuMemcpyDtoH_v2(back, seen, sizeof(back)));
	for (unsigned i = 0; i < 9; i++)
		REQUIRE_EQUAL(back[i], i < 6 ? 10 + i / 2 : 20);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

static void test_enabled(void)
{
	CUdeviceptr word = words(1, 0);
	CUgraphExec executable;
	CUgraphNode node;
	CUgraph graph = incrementing(increment, pointer_to(word), &node);

	executable = instantiate(graph);
	for (unsigned i = 0; i < 3; i++) {
		for (unsigned enabled = 0; enabled < 2; enabled++) {
			CHECK(cuGraphNodeSetEnabled(executable, node, enabled));
			CHECK(cuGraphLaunch(executable, NULL));
			CHECK(cuGraphLaunch(executable, NULL));
		}
	}
	REQUIRE_EQUAL(word_at(word), 6);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

/* What was destroyed is an error at the call, whatever is made after it. */
static void test_destroyed(void)
{
	CUdeviceptr word = words(1, 0), pointer = pointer_to(word);
	CUgraph graph = incrementing(increment, pointer, NULL);
	CUgraphExec first = instantiate(graph), second;
	CUstream stream = new_stream();

	for (unsigned i = 0; i < 3; i++)
		CHECK(cuGraphLaunch(first, stream));
	CHECK(cuGraphExecDestroy(first));
	EXPECT(cuGraphLaunch(first, stream), CUDA_ERROR_INVALID_VALUE);
	second = instantiate(graph);
	for (unsigned i = 0; i < 3; i++)
		CHECK(cuGraphLaunch(second, stream));
	if (first != second)
		EXPECT(cuGraphLaunch(first, stream), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(word), 6);
	CHECK(cuGraphLaunch(second, NULL));
	CHECK(cuStreamDestroy_v2(stream));
	EXPECT(cuGraphLaunch(second, stream), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuGraphLaunch(second, NULL));
	EXPECT(cuGraphLaunch(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphExecDestroy(second));
	CHECK(cuGraphDestroy(graph));
	REQUIRE_EQUAL(word_at(word), 8);
}

static void require_refused_until_freed(CUgraphExec executable, CUdeviceptr memory)
{
	for (unsigned i = 0; i < 2; i++) {
		CHECK(cuGraphLaunch(executable, NULL));
		EXPECT(cuGraphLaunch(executable, NULL), CUDA_ERROR_INVALID_VALUE);
		CHECK(cuMemFreeAsync(memory, NULL));
	}
	CHECK(cuGraphExecDestroy(executable));
}

/* What a graph allocates must be freed before it does so again: by a node, by a capture, in a child. */
static void test_allocations(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			       .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } },
		.bytesize = 4096,
	};
	CUgraphNodeParams child = {
		.type = CU_GRAPH_NODE_TYPE_GRAPH,
		.graph = { .ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE },
	};
	CUstream stream = new_stream();
	CUdeviceptr memory;
	CUgraphExec executable;
	CUgraph graph, parent;
	CUgraphNode node;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
	require_refused_until_freed(instantiate(graph), params.dptr);
	CHECK(cuGraphDestroy(graph));

	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuMemAllocAsync(&memory, 4096, stream));
	CHECK(cuMemsetD32Async(memory, 1, 1, stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	require_refused_until_freed(instantiate(graph), memory);
	CHECK(cuGraphDestroy(graph));

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
	CHECK(cuGraphCreate(&parent, 0));
	child.graph.graph = graph;
	CHECK(cuGraphAddNode_v2(&node, parent, NULL, NULL, 0, &child));
	require_refused_until_freed(instantiate(parent), params.dptr);
	CHECK(cuGraphDestroy(parent));

	/* What it frees itself it may allocate again. */
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuMemAllocAsync(&memory, 4096, stream));
	CHECK(cuMemFreeAsync(memory, stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	executable = instantiate(graph);
	for (unsigned i = 0; i < 3; i++)
		CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuStreamDestroy_v2(stream));
}

/* Kernels whose code has gone, and events that were destroyed, are errors at the call. */
static void test_what_has_gone(void)
{
	CUdeviceptr word = words(1, 0), pointer = pointer_to(word);
	CUgraphExec unloaded, ended, recording;
	CUgraphNode node;
	CUcontext context;
	CUmodule module;
	CUgraph graph;
	CUevent event;

	graph = incrementing(load(&module), pointer, NULL);
	unloaded = instantiate(graph);
	CHECK(cuGraphLaunch(unloaded, NULL));
	CHECK(cuGraphLaunch(unloaded, NULL));
	CHECK(cuModuleUnload(module));
	EXPECT(cuGraphLaunch(unloaded, NULL), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuGraphExecDestroy(unloaded));
	CHECK(cuGraphDestroy(graph));

	CHECK(cuCtxCreate_v2(&context, 0, 0));
	graph = incrementing(load(&module), pointer, NULL);
	ended = instantiate(graph);
	CHECK(cuCtxSetCurrent(primary));
	CHECK(cuGraphLaunch(ended, NULL));
	CHECK(cuGraphLaunch(ended, NULL));
	CHECK(cuCtxSynchronize());
	CHECK(cuCtxDestroy_v2(context));
	CHECK(cuCtxSetCurrent(primary));
	EXPECT(cuGraphLaunch(ended, NULL), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuGraphExecDestroy(ended));
	CHECK(cuGraphDestroy(graph));
	REQUIRE_EQUAL(word_at(word), 4);

	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddEventRecordNode(&node, graph, NULL, 0, event));
	recording = instantiate(graph);
	CHECK(cuGraphLaunch(recording, NULL));
	CHECK(cuGraphLaunch(recording, NULL));
	CHECK(cuEventDestroy_v2(event));
	EXPECT(cuGraphLaunch(recording, NULL), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuGraphExecDestroy(recording));
	CHECK(cuGraphDestroy(graph));
}

/* Launches of one executable follow each other, in whatever streams and contexts they are. */
static void test_streams(void)
{
	CUdeviceptr word = words(1, 0);
	CUgraph graph = incrementing(increment, pointer_to(word), NULL);
	CUgraphExec executable = instantiate(graph);
	CUstream streams[3] = { NULL, new_stream(), new_stream() };
	CUcontext context;

	for (unsigned i = 0; i < REPLAYS; i++)
		CHECK(cuGraphLaunch(executable, streams[i % 3]));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(word_at(word), REPLAYS);
	CHECK(cuCtxCreate_v2(&context, 0, 0));
	for (unsigned i = 0; i < 3; i++)
		CHECK(cuGraphLaunch(executable, NULL));
	CHECK(cuCtxSynchronize());
	for (unsigned i = 0; i < 3; i++)
		CHECK(cuGraphLaunch(executable, streams[1]));
	CHECK(cuStreamSynchronize(streams[1]));
	CHECK(cuCtxDestroy_v2(context));
	CHECK(cuCtxSetCurrent(primary));
	REQUIRE_EQUAL(word_at(word), REPLAYS + 6);
	for (unsigned i = 1; i < 3; i++)
		CHECK(cuStreamDestroy_v2(streams[i]));
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

/* In a captured stream a launch becomes a part of what is captured. */
static void test_captured(void)
{
	CUdeviceptr word = words(1, 0);
	CUgraph graph = incrementing(increment, pointer_to(word), NULL), captured;
	CUgraphExec executable = instantiate(graph), outer;
	CUstream stream = new_stream();
	CUgraphNodeType type;
	CUgraphNode node;
	size_t count = 1;

	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamEndCapture(stream, &captured));
	CHECK(cuGraphGetNodes(captured, &node, &count));
	REQUIRE_EQUAL(count, 1);
	CHECK(cuGraphNodeGetType(node, &type));
	REQUIRE_EQUAL(type, CU_GRAPH_NODE_TYPE_GRAPH);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(word), 2);
	outer = instantiate(captured);
	CHECK(cuGraphLaunch(outer, stream));
	CHECK(cuGraphLaunch(outer, stream));
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(word), 6);
	CHECK(cuGraphDestroy(captured));
	/* A capture that is broken off takes none, and says so. */
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EXPECT(cuGraphLaunch(executable, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT(cuStreamEndCapture(stream, &captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(word), 7);
	CHECK(cuGraphExecDestroy(outer));
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuStreamDestroy_v2(stream));
}

static void slow(void *unused)
{
	(void)unused;
	for (int i = 0; i < 1000; i++)
		sched_yield();
}

static void note(void *argument)
{
	++*(unsigned *)argument;
}

/* Far more than a driver queues, behind a host function and behind graphs that call one. */
static void test_behind_host_functions(void)
{
	CUdeviceptr word = words(1, 0);
	CUgraph graph = incrementing(increment, pointer_to(word), NULL), calling;
	CUgraphExec executable = instantiate(graph), calls;
	unsigned called = 0;
	CUDA_HOST_NODE_PARAMS host = { .fn = note, .userData = &called };
	CUstream stream = new_stream();
	CUgraphNode node;

	CHECK(cuGraphCreate(&calling, 0));
	CHECK(cuGraphAddHostNode(&node, calling, NULL, 0, &host));
	calls = instantiate(calling);
	for (unsigned round = 0; round < 3; round++) {
		CHECK(cuLaunchHostFunc(stream, slow, NULL));
		for (unsigned i = 0; i < 1500; i++)
			CHECK(cuGraphLaunch(executable, stream));
		CHECK(cuGraphLaunch(calls, stream));
	}
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(word), 4500);
	REQUIRE_EQUAL(called, 3);
	CHECK(cuGraphExecDestroy(calls));
	CHECK(cuGraphDestroy(calling));
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuStreamDestroy_v2(stream));
}

static void *replay(void *unused)
{
	CUstream stream;

	(void)unused;
	CHECK(cuCtxSetCurrent(primary));
	stream = new_stream();
	for (unsigned i = 0; i < 5; i++)
		test_inputs(stream);
	CHECK(cuStreamDestroy_v2(stream));
	return NULL;
}

static void test_threads(void)
{
	pthread_t threads[THREADS];

	for (unsigned i = 0; i < THREADS; i++)
		REQUIRE(pthread_create(&threads[i], NULL, replay, NULL) == 0);
	for (unsigned i = 0; i < THREADS; i++)
		REQUIRE(pthread_join(threads[i], NULL) == 0);
}

/* The last: a replay that goes wrong ends the context, as any kernel does. */
static void test_fault(void)
{
	CUdeviceptr word = words(1, 0), pointer = pointer_to(word), nowhere = 16;
	CUgraph graph = incrementing(increment, pointer, NULL);
	CUgraphExec executable = instantiate(graph);

	CHECK(cuGraphLaunch(executable, NULL));
	CHECK(cuGraphLaunch(executable, NULL));
	CHECK(cuMemcpyHtoD_v2(pointer, &nowhere, sizeof(nowhere)));
	CHECK(cuGraphLaunch(executable, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuGraphLaunch(executable, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}

int main(void)
{
	CUmodule module;

	primary = begin();
	increment = load(&module);
	test_inputs(NULL);
	test_updates();
	test_enabled();
	test_destroyed();
	test_allocations();
	test_what_has_gone();
	test_streams();
	test_captured();
	test_behind_host_functions();
	test_threads();
	test_fault();
	return 0;
}
