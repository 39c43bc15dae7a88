/* Where program and GPU are on one node, pinned memory is the kernels' memory, too, while they run: flags both ways,
 * words that streams wait for, atomics, copies and fills in stream order, graphs. */
#include "../calls.h"

#include <sched.h>

#define COUNT 64u

/* answer(word): waits for 1 in word[0], says 2 in word[1], waits for 3 in word[2], says 4 in word[3]
 * count(word, n): adds 1, n times, atomically for this machine too */
static const char meeting[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry answer(.param .u64 pa)\n"
"{\n"
"	.reg .pred %p<2>;\n"
"	.reg .b32 %r<2>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"$first:\n"
"	ld.volatile.global.u32 %r1, [%rd1];\n"
"	setp.ne.u32 %p1, %r1, 1;\n"
"	@%p1 bra $first;\n"
"	mov.u32 %r1, 2;\n"
"	st.volatile.global.u32 [%rd1+4], %r1;\n"
"$second:\n"
"	ld.volatile.global.u32 %r1, [%rd1+8];\n"
"	setp.ne.u32 %p1, %r1, 3;\n"
"	@%p1 bra $second;\n"
"	mov.u32 %r1, 4;\n"
"	st.volatile.global.u32 [%rd1+12], %r1;\n"
"	ret;\n"
"}\n"
".visible .entry count(.param .u64 pa, .param .u32 pn)\n"
"{\n"
"	.reg .pred %p<2>;\n"
"	.reg .b32 %r<4>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	ld.param.u32 %r1, [pn];\n"
"	mov.u32 %r3, 1;\n"
"$more:\n"
"	atom.global.sys.add.u32 %r2, [%rd1], %r3;\n"
"	sub.u32 %r1, %r1, 1;\n"
"	setp.ne.u32 %p1, %r1, 0;\n"
"	@%p1 bra $more;\n"
"	ret;\n"
"}\n";

static CUmodule module;

static CUdeviceptr address_of(const volatile void *memory)
{
	return (CUdeviceptr)(uintptr_t)memory;
}

static void *pinned(size_t bytes)
{
	void *memory;

	CHECK(cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	return memory;
}

static void await(volatile unsigned *word, unsigned value)
{
	while (*word != value)
		sched_yield();
}

static void store(CUdeviceptr address, unsigned value, CUstream stream)
{
	void *parameters[] = { &address, &value };

	CHECK(cuLaunchKernel(store_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void flags(CUstream stream)
{
	volatile unsigned *word = pinned(16);
	CUdeviceptr address = address_of(word);
	void *parameters[] = { &address };
	CUfunction answer;

	CHECK(cuModuleGetFunction(&answer, module, "answer"));
	CHECK(cuLaunchKernel(answer, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	word[0] = 1;
	await(&word[1], 2);
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	word[2] = 3;
	await(&word[3], 4);
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemFreeHost((void *)word));
}

static void words_of_streams(CUstream stream)
{
	volatile unsigned *word = pinned(8);

	CHECK(cuStreamWaitValue32_v2(stream, address_of(word), 5, CU_STREAM_WAIT_VALUE_EQ));
	CHECK(cuStreamWriteValue32_v2(stream, address_of(word + 1), 6, 0));
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	REQUIRE_EQUAL(word[1], 0);
	word[0] = 5;
	await(&word[1], 6);
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemFreeHost((void *)word));
}

static void atomics(CUstream stream)
{
	unsigned *sum = pinned(4), count = 20000;
	CUdeviceptr address = address_of(sum);
	void *parameters[] = { &address, &count };
	CUfunction add;

	CHECK(cuModuleGetFunction(&add, module, "count"));
	CHECK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
	for (unsigned i = 0; i < 3 * count; i++)
		__atomic_fetch_add(sum, 1, __ATOMIC_SEQ_CST);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(*sum, 4 * count);
	CHECK(cuMemFreeHost(sum));
}

/* Queued while the stream is held, so that what is done too early shows. */
static void in_stream_order(CUstream stream)
{
	unsigned *in = pinned(4 * COUNT), *filled = pinned(4 * COUNT);
	volatile unsigned *gate = pinned(4);
	const CUDA_ARRAY_DESCRIPTOR shape = { COUNT, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1 };
	CUDA_MEMCPY2D rows = { .Height = 1, .WidthInBytes = 4 * COUNT };
	unsigned *through = pinned(4 * COUNT);
	CUarray array;

	CHECK(cuArrayCreate_v2(&array, &shape));
	CHECK(cuStreamWaitValue32_v2(stream, address_of(gate), 1, CU_STREAM_WAIT_VALUE_EQ));
	CHECK(cuMemsetD32Async(address_of(filled), 9, COUNT, stream));
	store(address_of(filled + 1), 10, stream);
	rows.srcMemoryType = CU_MEMORYTYPE_HOST;
	rows.srcHost = in;
	rows.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	rows.dstArray = array;
	CHECK(cuMemcpy2DAsync_v2(&rows, stream));
	rows.srcMemoryType = CU_MEMORYTYPE_ARRAY;
	rows.srcArray = array;
	rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
	rows.dstDevice = address_of(through);
	CHECK(cuMemcpy2DAsync_v2(&rows, stream));
	for (unsigned i = 0; i < COUNT; i++) {
		REQUIRE(!filled[i] && !through[i]);
		in[i] = 100 + i;
	}
	*gate = 1;
	CHECK(cuStreamSynchronize(stream));
	for (unsigned i = 0; i < COUNT; i++) {
		REQUIRE_EQUAL(filled[i], i == 1 ? 10 : 9);
		REQUIRE_EQUAL(through[i], 100 + i);
	}
	/* Of pinned memory it waits, as the documentation of cuMemset says. */
	CHECK(cuMemsetD16_v2(address_of(filled), 3, 4));
	REQUIRE(filled[0] == 0x30003 && filled[1] == 0x30003 && filled[2] == 9);
	/* Beyond its end: pinned memory is none of a whole device's. */
	EXPECT(cuMemsetD32Async(address_of(filled), 1, 4096, stream), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuArrayDestroy(array));
	/* From host to host it waits, whatever the memory is. */
	store(address_of(in), 1, stream);
	CHECK(cuMemcpyAsync(address_of(filled), address_of(in), 4 * COUNT, stream));
	REQUIRE(filled[0] == 1 && filled[1] == 101);
	CHECK(cuMemFreeHost(in));
	CHECK(cuMemFreeHost(filled));
	CHECK(cuMemFreeHost(through));
	CHECK(cuMemFreeHost((void *)gate));
}

static void expect_copies(CUgraph graph, size_t nodes, size_t copies)
{
	CUgraphNode found[8];
	size_t count = 8;

	CHECK(cuGraphGetNodes(graph, found, &count));
	REQUIRE_EQUAL(count, nodes);
	for (size_t i = 0; i < count; i++) {
		CUgraphNodeType type;

		CHECK(cuGraphNodeGetType(found[i], &type));
		copies -= type == CU_GRAPH_NODE_TYPE_MEMCPY;
	}
	REQUIRE_EQUAL(copies, 0);
}

/* What is captured are the copies themselves: each run reads and writes memory anew. */
static void captured(CUstream stream)
{
	unsigned *in = pinned(4 * COUNT), *out = pinned(4 * COUNT), *more = pinned(4 * COUNT);
	CUdeviceptr device = words(COUNT, 0);
	CUgraphExec run;
	CUgraph graph;

	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuMemcpyHtoDAsync_v2(device, in, 4 * COUNT, stream));
	store(device, 1, stream);
	CHECK(cuMemcpyDtoHAsync_v2(out, device, 4 * COUNT, stream));
	CHECK(cuMemcpyAsync(address_of(more), address_of(out), 4 * COUNT, stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	expect_copies(graph, 4, 3);
	CHECK(cuGraphInstantiateWithFlags(&run, graph, 0));
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < COUNT; i++)
			in[i] = 10 * round + i;
		CHECK(cuGraphLaunch(run, stream));
		CHECK(cuStreamSynchronize(stream));
		for (unsigned i = 0; i < COUNT; i++) {
			REQUIRE_EQUAL(out[i], i ? 10 * round + i : 1);
			REQUIRE_EQUAL(more[i], out[i]);
		}
	}
	CHECK(cuGraphExecDestroy(run));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuMemFree_v2(device));
	CHECK(cuMemFreeHost(in));
	CHECK(cuMemFreeHost(out));
	CHECK(cuMemFreeHost(more));
}

static void nodes(CUcontext context, CUstream stream)
{
	unsigned *in = pinned(4 * COUNT), *out = pinned(4 * COUNT), *other = pinned(4 * COUNT);
	CUDA_MEMCPY3D copy = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = in,
		.dstMemoryType = CU_MEMORYTYPE_HOST,
		.dstHost = out,
		.WidthInBytes = 4 * COUNT,
		.Height = 1,
		.Depth = 1,
	};
	CUgraphNodeParams second = { .type = CU_GRAPH_NODE_TYPE_MEMCPY };
	CUgraphNode first, node;
	CUgraphExec run;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemcpyNode(&first, graph, NULL, 0, &copy, context));
	second.memcpy.copyParams = copy;
	second.memcpy.copyParams.srcHost = out;
	second.memcpy.copyParams.dstHost = other;
	second.memcpy.copyCtx = context;
	CHECK(cuGraphAddNode_v2(&node, graph, &first, NULL, 1, &second));
	REQUIRE(second.memcpy.copyParams.srcMemoryType == CU_MEMORYTYPE_HOST &&
		second.memcpy.copyParams.srcHost == out);
	expect_copies(graph, 2, 2);
	CHECK(cuGraphInstantiateWithFlags(&run, graph, 0));
	in[0] = 7;
	CHECK(cuGraphLaunch(run, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(out[0] == 7 && other[0] == 7);
	copy.srcHost = in + 1;
	copy.WidthInBytes = 4;
	in[1] = 8;
	CHECK(cuGraphExecMemcpyNodeSetParams(run, first, &copy, context));
	CHECK(cuGraphLaunch(run, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(out[0] == 8 && other[0] == 8);
	CHECK(cuGraphExecDestroy(run));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuMemFreeHost(in));
	CHECK(cuMemFreeHost(out));
	CHECK(cuMemFreeHost(other));
}

static void many_pieces(void)
{
	static unsigned *piece[400];
	const unsigned count = sizeof(piece) / sizeof(piece[0]);

	for (unsigned i = 0; i < count; i++) {
		piece[i] = pinned(4 + i);
		store(address_of(piece[i]), i, NULL);
	}
	CHECK(cuCtxSynchronize());
	for (unsigned i = 0; i < count; i++)
		REQUIRE_EQUAL(*piece[i], i);
	for (unsigned i = 0; i < count; i += 2)
		CHECK(cuMemFreeHost(piece[i]));
	for (unsigned i = 1; i < count; i += 2) {
		store(address_of(piece[i]), 2 * i, NULL);
		/* It waits for what may use it. */
		CHECK(cuMemFreeHost(piece[i]));
	}
	CHECK(cuCtxSynchronize());
}

/* One context's memory is the others', too. */
static void portable(CUdevice device)
{
	unsigned *memory = pinned(4);
	CUcontext other, before;
	unsigned value = 12;
	CUdeviceptr inside;
	void *parameters[] = { &inside, &value };
	CUfunction kernel;
	CUmodule loaded;

	CHECK(cuCtxGetCurrent(&before));
	CHECK(cuCtxCreate_v2(&other, 0, device));
	CHECK(cuMemHostGetDevicePointer_v2(&inside, memory, 0));
	CHECK(cuModuleLoadData(&loaded, code));
	CHECK(cuModuleGetFunction(&kernel, loaded, "store"));
	CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(*memory, 12);
	CHECK(cuCtxDestroy_v2(other));
	CHECK(cuCtxSetCurrent(before));
	CHECK(cuMemFreeHost(memory));
}

int main(void)
{
	CUcontext context = begin();
	CUstream stream;

	CHECK(cuModuleLoadData(&module, meeting));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	/* Loading may wait for what runs. */
	(void)store_kernel();
	flags(stream);
	words_of_streams(stream);
	atomics(stream);
	in_stream_order(stream);
	captured(stream);
	nodes(context, stream);
	many_pieces();
	portable(0);
	printf("ok\n");
	return 0;
}
