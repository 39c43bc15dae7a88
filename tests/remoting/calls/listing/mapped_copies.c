/* Pinned memory that kernels may use is host memory to every kind of copy: nodes of graphs, and copies that have
 * ended when they return.  "more": what the software GPU itself lacks, lists and arrays. */
#include "../calls.h"

#define COUNT 3000u
#define BYTES (4 * COUNT)

static CUstream stream, gated;
static CUdeviceptr gate;
static unsigned turn;

static CUdeviceptr address_of(const void *memory)
{
	return (CUdeviceptr)(uintptr_t)memory;
}

static unsigned *pinned(void)
{
	void *memory;

	CHECK(cuMemHostAlloc(&memory, BYTES, CU_MEMHOSTALLOC_DEVICEMAP));
	return memory;
}

static void put(unsigned *words, unsigned first)
{
	for (unsigned i = 0; i < COUNT; i++)
		words[i] = first + i;
}

static void expect(const unsigned *words, unsigned first)
{
	for (unsigned i = 0; i < COUNT; i++)
		REQUIRE_EQUAL(words[i], first + i);
}

/* What is posted to the stream now waits for open(). */
static void close_stream(void)
{
	CHECK(cuStreamWaitValue32_v2(stream, gate, ++turn, CU_STREAM_WAIT_VALUE_EQ));
}

static void open_stream(void)
{
	CHECK(cuStreamWriteValue32_v2(gated, gate, turn, 0));
}

static void graph_nodes(CUcontext context)
{
	unsigned *in = pinned(), *out = pinned();
	CUdeviceptr device = words(COUNT, 0);
	CUDA_MEMCPY3D copy = {
		.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = in,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = device,
		.WidthInBytes = BYTES, .Height = 1, .Depth = 1,
	}, told;
	CUgraphExec executable;
	CUgraphNode to, from;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemcpyNode(&to, graph, NULL, 0, &copy, context));
	copy = (CUDA_MEMCPY3D){
		.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = device,
		.dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = out,
		.WidthInBytes = BYTES, .Height = 1, .Depth = 1,
	};
	CHECK(cuGraphAddMemcpyNode(&from, graph, &to, 1, &copy, context));
	CHECK(cuGraphMemcpyNodeGetParams(from, &told));
	REQUIRE(told.dstHost == out && told.dstMemoryType == CU_MEMORYTYPE_HOST);
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	for (unsigned round = 0; round < 4; round++) {
		put(in, 100 * round);
		CHECK(cuGraphLaunch(executable, stream));
		CHECK(cuStreamSynchronize(stream));
		expect(out, 100 * round);
	}
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuMemFreeHost(in));
	CHECK(cuMemFreeHost(out));
	CHECK(cuMemFree_v2(device));
}

static void lists(void)
{
	unsigned *in = pinned(), *out = pinned();
	CUdeviceptr device = words(COUNT, 0);
	CUdeviceptr to[2] = { device, device + 4000 }, from[2] = { address_of(in), address_of(in) + 4000 };
	CUdeviceptr back[1] = { address_of(out) }, there[1] = { device };
	size_t sizes[2] = { 4000, BYTES - 4000 }, all[1] = { BYTES }, first = 0;
	CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };

	put(in, 5);
	CHECK(cuMemcpyBatchAsync_v2(to, from, sizes, 2, &attributes, &first, 1, stream));
	CHECK(cuMemcpyBatchAsync_v2(back, there, all, 1, &attributes, &first, 1, stream));
	CHECK(cuStreamSynchronize(stream));
	expect(out, 5);
	CHECK(cuMemFreeHost(in));
	CHECK(cuMemFreeHost(out));
	CHECK(cuMemFree_v2(device));
}

static void arrays(void)
{
	const CUDA_ARRAY_DESCRIPTOR shape = { .Width = COUNT, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1 };
	unsigned *in = pinned(), *out = pinned();
	CUarray array;

	CHECK(cuArrayCreate_v2(&array, &shape));
	for (unsigned round = 0; round < 3; round++) {
		put(in, round);
		CHECK(cuMemcpyHtoA_v2(array, 0, in, BYTES));
		CHECK(cuMemcpyAtoH_v2(out, array, 0, BYTES));
		expect(out, round);
		put(in, round + 50);
		CHECK(cuMemcpyHtoAAsync_v2(array, 0, in, BYTES, stream));
		CHECK(cuMemcpyAtoHAsync_v2(out, array, 0, BYTES, stream));
		CHECK(cuStreamSynchronize(stream));
		expect(out, round + 50);
	}
	CHECK(cuArrayDestroy(array));
	CHECK(cuMemFreeHost(in));
	CHECK(cuMemFreeHost(out));
}

static void CUDA_CB open_late(void *opaque)
{
	volatile unsigned *spin = opaque;

	while (*spin < 1000000)
		*spin = *spin + 1;
}

/* Within host memory the copy is over when the call returns, whatever was before it in the stream. */
static void ended(void)
{
	unsigned *in = pinned(), *out = pinned(), *plain = malloc(BYTES);
	CUdeviceptr device = words(COUNT, 0);

	REQUIRE(plain);
	for (unsigned round = 0; round < 5; round++) {
		unsigned spin = 0;

		put(in, round);
		put(plain, 70 + round);
		CHECK(cuLaunchHostFunc(stream, open_late, &spin));
		CHECK(cuMemcpyAsync(address_of(out), address_of(in), BYTES, stream));
		expect(out, round);
		REQUIRE_EQUAL(spin, 1000000);
		CHECK(cuMemcpyAsync(address_of(out), address_of(plain), BYTES, stream));
		expect(out, 70 + round);
		CHECK(cuMemcpyAsync(address_of(plain), address_of(in), BYTES, stream));
		expect(plain, round);
		CHECK(cuMemcpyDtoD_v2(device, address_of(in), BYTES));
		put(in, 0);
		CHECK(cuMemcpyDtoD_v2(address_of(out), device, BYTES));
		expect(out, round);
	}
	free(plain);
	CHECK(cuMemFreeHost(in));
	CHECK(cuMemFreeHost(out));
	CHECK(cuMemFree_v2(device));
}

/* Freeing waits for what is queued: nothing of it may come to what is put there next. */
static void freed(void)
{
	CUdeviceptr device = words(COUNT, 9);

	for (unsigned round = 0; round < 10; round++) {
		unsigned *memory = pinned(), *again;

		close_stream();
		CHECK(cuMemcpyDtoHAsync_v2(memory, device, BYTES, stream));
		open_stream();
		CHECK(cuMemFreeHost(memory));
		again = pinned();
		put(again, round);
		CHECK(cuStreamSynchronize(stream));
		expect(again, round);
		CHECK(cuMemFreeHost(again));
	}
	CHECK(cuMemFree_v2(device));
}

static void refused(void)
{
	unsigned *memory = pinned();

	EXPECT(cuMemHostRegister_v2(memory, 4096, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	EXPECT(cuMemFree_v2(address_of(memory)), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFreeAsync(address_of(memory), stream), CUDA_ERROR_INVALID_VALUE);
	put(memory, 3);
	expect(memory, 3);
	CHECK(cuMemFreeHost(memory));
}

int main(int argc, char **argv)
{
	CUcontext context;

	(void)argv;
	begin();
	CHECK(cuCtxGetCurrent(&context));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&gated, CU_STREAM_NON_BLOCKING));
	gate = words(1, 0);
	graph_nodes(context);
	if (argc > 1) {
		lists();
		arrays();
	}
	ended();
	freed();
	refused();
	printf("ok\n");
	return 0;
}
