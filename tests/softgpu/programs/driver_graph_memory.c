/* softgpu: mem=64MiB */
/* Allocation nodes: an address that stays, memory that is live from a launch until it is freed in the
 * graph, by another graph, by cuMemFreeAsync, by cuMemFree or at the next launch. */
#include "graph.h"

#define BYTES (16ul << 20)

static CUDA_MEM_ALLOC_NODE_PARAMS allocation(void)
{
	return (CUDA_MEM_ALLOC_NODE_PARAMS){
		.poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			       .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } },
		.bytesize = BYTES,
	};
}

static cuuint64_t attribute(CUgraphMem_attribute which)
{
	cuuint64_t bytes;

	CHECK(cuDeviceGetGraphMemAttribute(0, which, &bytes));
	return bytes;
}

static cuuint64_t used(void)
{
	return attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
}

static cuuint64_t reserved(void)
{
	return attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
}

/* Allocate, write, copy to `word`, free: all in the graph. */
static void test_inside(CUdeviceptr word)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = allocation(), found;
	CUgraphNode alloc, store, copy, gone, again;
	CUDA_MEMCPY3D copy_params;
	CUgraphExec executable, second;
	CUgraph graph, clone;
	CUdeviceptr address;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
	store = add_store(graph, alloc, params.dptr, 77);
	copy_params = copy_word(word, params.dptr);
	CHECK(cuGraphAddMemcpyNode(&copy, graph, &store, 1, &copy_params, NULL));
	EXPECT(cuGraphAddMemFreeNode(&gone, graph, &copy, 1, word), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphAddMemFreeNode(&gone, graph, &copy, 1, params.dptr));
	EXPECT(cuGraphAddMemFreeNode(&again, graph, &copy, 1, params.dptr), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphMemAllocNodeGetParams(alloc, &found));
	REQUIRE(found.dptr == params.dptr && found.bytesize == BYTES);
	CHECK(cuGraphMemFreeNodeGetParams(gone, &address));
	REQUIRE(address == params.dptr);
	EXPECT(cuGraphClone(&clone, graph), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuGraphDestroyNode(gone), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuGraphRemoveDependencies(graph, &alloc, &store, NULL, 1), CUDA_ERROR_NOT_SUPPORTED);
	executable = instantiate(graph);
	EXPECT(cuGraphInstantiate(&second, graph, 0), CUDA_ERROR_NOT_SUPPORTED);
	for (int i = 0; i < 3; i++) {
		CHECK(cuMemsetD32(word, 0, 1));
		run(executable, NULL);
		REQUIRE_EQUAL(word_at(word), 77);
	}
	EXPECT(cuMemFree(params.dptr), CUDA_ERROR_INVALID_VALUE);
	REQUIRE_EQUAL(used(), BYTES);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	REQUIRE_EQUAL(used(), 0);
}

/* What a launch leaves allocated outlives graph and executable. */
static void test_outside(CUstream stream)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = allocation();
	CUgraphNode alloc, gone;
	CUgraphExec executable, freeing;
	CUgraph graph, other;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
	add_store(graph, alloc, params.dptr, 5);
	executable = instantiate(graph);
	EXPECT(cuMemFreeAsync(params.dptr, stream), CUDA_ERROR_INVALID_VALUE);
	run(executable, stream);
	REQUIRE_EQUAL(word_at(params.dptr), 5);
	EXPECT(cuGraphLaunch(executable, stream), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFreeAsync(params.dptr, stream));
	EXPECT(cuMemFreeAsync(params.dptr, stream), CUDA_ERROR_INVALID_VALUE);
	run(executable, stream);

	CHECK(cuGraphCreate(&other, 0));
	CHECK(cuGraphAddMemFreeNode(&gone, other, NULL, 0, params.dptr));
	freeing = instantiate(other);
	run(freeing, stream);
	EXPECT(cuGraphLaunch(freeing, stream), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphExecDestroy(freeing));
	CHECK(cuGraphDestroy(other));

	run(executable, stream);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	REQUIRE_EQUAL(word_at(params.dptr), 5);
	REQUIRE_EQUAL(used(), BYTES);
	CHECK(cuMemFree(params.dptr));
	EXPECT(cuMemFree(params.dptr), CUDA_ERROR_INVALID_VALUE);
	REQUIRE_EQUAL(used(), 0);
}

static void test_automatic(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = allocation();
	CUgraphExec executable;
	cuuint64_t flags;
	CUgraphNode alloc;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
	CHECK(cuGraphInstantiate(&executable, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
	CHECK(cuGraphExecGetFlags(executable, &flags));
	REQUIRE_EQUAL(flags, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
	run(executable, NULL);
	run(executable, NULL);
	CHECK(cuMemFree(params.dptr));
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

/* The memory of captured allocations, and more of them than fit at once. */
static void test_captured(CUstream stream)
{
	CUdeviceptr address;
	CUgraph graph;

	for (int i = 0; i < 8; i++) {
		CUgraphExec executable;

		CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
		CHECK(cuMemAllocAsync(&address, BYTES, stream));
		CHECK(cuMemsetD32Async(address, 1, BYTES / 4, stream));
		CHECK(cuMemFreeAsync(address, stream));
		graph = end_capture(stream);
		executable = instantiate(graph);
		run(executable, stream);
		CHECK(cuGraphExecDestroy(executable));
		CHECK(cuGraphDestroy(graph));
	}
}

/* What is freed before in the order of the edges serves again; what may be in use does not. */
static void test_reuse(CUstream stream)
{
	CUDA_MEM_ALLOC_NODE_PARAMS first = allocation(), second = allocation(), third = allocation();
	CUgraphNode alloc, gone, other;
	CUdeviceptr addresses[8];
	CUgraphExec executable;
	CUgraph graph;

	CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 8; i++) {
		CHECK(cuMemAllocAsync(&addresses[i], BYTES, stream));
		CHECK(cuMemsetD32Async(addresses[i], (unsigned)i, BYTES / 4, stream));
		if (i < 7)
			CHECK(cuMemFreeAsync(addresses[i], stream));
	}
	graph = end_capture(stream);
	REQUIRE_EQUAL(used(), BYTES);
	executable = instantiate(graph);
	run(executable, stream);
	REQUIRE_EQUAL(word_at(addresses[7]), 7);
	EXPECT(cuGraphLaunch(executable, stream), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFree(addresses[7]));
	run(executable, stream);
	CHECK(cuMemFree(addresses[7]));
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	REQUIRE_EQUAL(used(), 0);

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &first));
	CHECK(cuGraphAddMemFreeNode(&gone, graph, &alloc, 1, first.dptr));
	CHECK(cuGraphAddMemAllocNode(&other, graph, &alloc, 1, &second));
	REQUIRE(second.dptr != first.dptr);
	CHECK(cuGraphAddMemAllocNode(&other, graph, &gone, 1, &third));
	REQUIRE(third.dptr == first.dptr);
	CHECK(cuGraphDestroy(graph));
}

/* Memory that no graph has any more stays reserved for the next one, until it is trimmed or nothing else is left. */
static void test_kept(CUcontext context)
{
	CUDA_MEM_ALLOC_NODE_PARAMS first = allocation(), second = allocation();
	size_t before, between, after, total;
	CUdeviceptr all, address;
	cuuint64_t zero = 0;
	CUgraphNode alloc;
	CUgraph graph;

	CHECK(cuDeviceGraphMemTrim(0));
	REQUIRE_EQUAL(reserved(), 0);
	CHECK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero));
	CHECK(cuMemGetInfo(&before, &total));
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &first));
	CHECK(cuGraphDestroy(graph));
	REQUIRE_EQUAL(used(), 0);
	REQUIRE_EQUAL(reserved(), BYTES);
	CHECK(cuMemGetInfo(&between, &total));
	REQUIRE_EQUAL(before - between, BYTES);
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &second));
	address = second.dptr;
	REQUIRE(address == first.dptr);
	REQUIRE_EQUAL(used(), BYTES);
	REQUIRE_EQUAL(reserved(), BYTES);
	CHECK(cuDeviceGraphMemTrim(0));
	REQUIRE_EQUAL(reserved(), BYTES);
	CHECK(cuGraphDestroy(graph));
	CHECK(cuDeviceGraphMemTrim(0));
	REQUIRE_EQUAL(reserved(), 0);
	REQUIRE_EQUAL(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), BYTES);
	CHECK(cuMemGetInfo(&after, &total));
	REQUIRE_EQUAL(after, before);

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &second));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuMemAlloc(&all, before - BYTES / 2));
	REQUIRE_EQUAL(reserved(), 0);
	CHECK(cuMemFree(all));

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &second));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuDevicePrimaryCtxReset(0));
	REQUIRE_EQUAL(reserved(), 0);
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
}

int main(void)
{
	CUdeviceptr word;
	cuuint64_t high = 0;
	CUcontext context;
	CUstream stream;

	context = begin();
	word = new_word(0);
	CHECK(cuStreamCreate(&stream, 0));
	test_inside(word);
	test_outside(stream);
	test_automatic();
	test_captured(stream);
	CHECK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &high));
	REQUIRE_EQUAL(high, BYTES);
	test_reuse(stream);
	high = 0;
	CHECK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &high));
	CHECK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &high));
	REQUIRE_EQUAL(high, 0);
	CHECK(cuDeviceGraphMemTrim(0));
	test_kept(context);
	return 0;
}
