/* Every path that takes memory of a device, in a lease of 64 MiB: refused beyond it, and
 * given back. */
#include "../calls/calls.h"

#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define LIMIT (64 * MIB)

static size_t left(void)
{
	size_t free_bytes, total;

	CHECK(cuMemGetInfo_v2(&free_bytes, &total));
	REQUIRE_EQUAL(total, LIMIT);
	return free_bytes;
}

#define OVER(call) EXPECT(call, CUDA_ERROR_OUT_OF_MEMORY)

static void plain(void)
{
	CUdeviceptr memory, second;
	size_t pitch;

	CHECK(cuMemAlloc_v2(&memory, 48 * MIB));
	REQUIRE_EQUAL(left(), 16 * MIB);
	OVER(cuMemAlloc_v2(&second, 17 * MIB));
	CHECK(cuMemAlloc_v2(&second, 16 * MIB));
	REQUIRE_EQUAL(left(), 0);
	CHECK(cuMemFree_v2(memory));
	CHECK(cuMemFree_v2(second));
	REQUIRE_EQUAL(left(), LIMIT);
	OVER(cuMemAllocPitch_v2(&memory, &pitch, MIB, 65, 4));
	REQUIRE_EQUAL(left(), LIMIT);
	CHECK(cuMemAllocPitch_v2(&memory, &pitch, 512, 1024, 4));
	REQUIRE_EQUAL(left(), LIMIT - pitch * 1024);
	CHECK(cuMemFree_v2(memory));
}

/* Small allocations share 2 MiB; a page is for alignment. */
static void managed(void)
{
	CUdeviceptr memory, second, third;

	OVER(cuMemAllocManaged(&memory, 65 * MIB, CU_MEM_ATTACH_GLOBAL));
	REQUIRE_EQUAL(left(), LIMIT);
	CHECK(cuMemAllocManaged(&memory, 40 * MIB, CU_MEM_ATTACH_GLOBAL));
	REQUIRE_EQUAL(left(), 24 * MIB - 4096);
	CHECK(cuMemAllocManaged(&second, 100, CU_MEM_ATTACH_GLOBAL));
	CHECK(cuMemAllocManaged(&third, 100, CU_MEM_ATTACH_GLOBAL));
	REQUIRE_EQUAL(left(), 22 * MIB - 4096);
	OVER(cuMemAllocManaged(&memory, 23 * MIB, CU_MEM_ATTACH_GLOBAL));
	CHECK(cuMemFree_v2(memory));
	CHECK(cuMemFree_v2(second));
	REQUIRE_EQUAL(left(), LIMIT - 2 * MIB);
	CHECK(cuMemFree_v2(third));
	REQUIRE_EQUAL(left(), LIMIT);
}

static void ordered(void)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
	};
	CUdeviceptr memory, second;
	CUmemoryPool pool;

	CHECK(cuMemAllocAsync(&memory, 40 * MIB, NULL));
	CHECK(cuMemPoolCreate(&pool, &props));
	OVER(cuMemAllocFromPoolAsync(&second, 25 * MIB, pool, NULL));
	OVER(cuMemAllocAsync(&second, 25 * MIB, NULL));
	CHECK(cuMemAllocFromPoolAsync(&second, 20 * MIB, pool, NULL));
	REQUIRE_EQUAL(left(), 4 * MIB);
	CHECK(cuMemFreeAsync(memory, NULL));
	CHECK(cuMemFreeAsync(second, NULL));
	CHECK(cuCtxSynchronize());
	CHECK(cuMemPoolDestroy(pool));
}

/* Memory that is mapped is there, also without a handle. */
static void virtual(void)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
	};
	CUmemGenericAllocationHandle memory, second;
	CUdeviceptr address;

	OVER(cuMemCreate(&memory, 66 * MIB, &prop, 0));
	CHECK(cuMemCreate(&memory, 40 * MIB, &prop, 0));
	CHECK(cuMemAddressReserve(&address, 40 * MIB, 0, 0, 0));
	CHECK(cuMemMap(address, 40 * MIB, 0, memory, 0));
	CHECK(cuMemRelease(memory));
	REQUIRE_EQUAL(left(), 24 * MIB);
	OVER(cuMemCreate(&second, 26 * MIB, &prop, 0));
	CHECK(cuMemUnmap(address, 40 * MIB));
	CHECK(cuMemAddressFree(address, 40 * MIB));
}

/* Memory that is bound is there, too, once, and until the object has gone; which takes none itself. */
static void multicast(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
	};
	const CUmulticastObjectProp shape = { .numDevices = 1, .size = 128 * MIB };
	CUmemGenericAllocationHandle memory, team;
	CUdeviceptr address, multi;

	CHECK(cuMulticastCreate(&team, &shape));
	CHECK(cuMulticastAddDevice(team, 0));
	CHECK(cuMemAddressReserve(&address, 40 * MIB, 0, 0, 0));
	CHECK(cuMemAddressReserve(&multi, 40 * MIB, 0, 0, 0));
	REQUIRE_EQUAL(left(), LIMIT);
	CHECK(cuMemCreate(&memory, 40 * MIB, &prop, 0));
	CHECK(cuMulticastBindMem(team, 0, memory, 20 * MIB, 20 * MIB, 0));
	CHECK(cuMulticastBindMem(team, 40 * MIB, memory, 0, 40 * MIB, 0));
	EXPECT(cuMulticastBindMem(team, 0, memory, 0, 40 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemMap(multi, 40 * MIB, 0, team, 0));
	CHECK(cuMemRelease(memory));
	REQUIRE_EQUAL(left(), 24 * MIB);
	CHECK(cuMulticastUnbind(team, 0, 0, 20 * MIB));
	REQUIRE_EQUAL(left(), 24 * MIB);
	EXPECT(cuMulticastUnbind(team, 0, 40 * MIB, 20 * MIB), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMulticastUnbind(team, 0, 40 * MIB, 40 * MIB));
	REQUIRE_EQUAL(left(), LIMIT);
	/* By its address, which may go. */
	CHECK(cuMemCreate(&memory, 40 * MIB, &prop, 0));
	CHECK(cuMemMap(address, 40 * MIB, 0, memory, 0));
	CHECK(cuMulticastBindAddr(team, 0, address, 40 * MIB, 0));
	CHECK(cuMemUnmap(address, 40 * MIB));
	CHECK(cuMemRelease(memory));
	REQUIRE_EQUAL(left(), 24 * MIB);
	CHECK(cuMemRelease(team));
	REQUIRE_EQUAL(left(), 24 * MIB);
	CHECK(cuMemUnmap(multi, 40 * MIB));
	REQUIRE_EQUAL(left(), LIMIT);
	/* Addresses that are taken, by what is none: nothing is counted. */
	CHECK(cuMemCreate(&memory, 40 * MIB, &prop, 0));
	CHECK(cuMemMap(address, 40 * MIB, 0, memory, 0));
	EXPECT(cuMemMap(address, 40 * MIB, 0, memory, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemRelease(memory));
	REQUIRE_EQUAL(left(), 24 * MIB);
	CHECK(cuMemUnmap(address, 40 * MIB));
	REQUIRE_EQUAL(left(), LIMIT);
	CHECK(cuMemAddressFree(address, 40 * MIB));
	CHECK(cuMemAddressFree(multi, 40 * MIB));
}

/* A handle for what a descriptor leads to: the same memory, the same object. */
static CUmemGenericAllocationHandle another_for(CUmemGenericAllocationHandle handle)
{
	CUmemGenericAllocationHandle other;
	int descriptor;

	CHECK(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CHECK(cuMemImportFromShareableHandle(&other, (void *)(intptr_t)descriptor,
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(descriptor);
	return other;
}

/* What is bound by one handle is unbound by any other. */
static void multicast_by_several_handles(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	};
	const CUmulticastObjectProp shape = {
		.numDevices = 1, .size = 40 * MIB, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	};
	CUmemGenericAllocationHandle memory, team, second, third;

	CHECK(cuMulticastCreate(&team, &shape));
	CHECK(cuMulticastAddDevice(team, 0));
	second = another_for(team);
	third = another_for(second);
	CHECK(cuMemCreate(&memory, 40 * MIB, &prop, 0));
	CHECK(cuMulticastBindMem(team, 0, memory, 0, 40 * MIB, 0));
	CHECK(cuMemRelease(memory));
	REQUIRE_EQUAL(left(), 24 * MIB);
	CHECK(cuMulticastUnbind(third, 0, 0, 40 * MIB));
	REQUIRE_EQUAL(left(), LIMIT);
	CHECK(cuMemCreate(&memory, 40 * MIB, &prop, 0));
	CHECK(cuMulticastBindMem(third, 0, memory, 0, 40 * MIB, 0));
	CHECK(cuMemRelease(memory));
	CHECK(cuMemRelease(third));
	REQUIRE_EQUAL(left(), 24 * MIB);
	CHECK(cuMulticastUnbind(second, 0, 0, 40 * MIB));
	REQUIRE_EQUAL(left(), LIMIT);
	CHECK(cuMemRelease(second));
	CHECK(cuMemRelease(team));
}

static void arrays(void)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {
		.Width = 4096, .Height = 2048, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1,
	};
	CUDA_ARRAY_DESCRIPTOR flat = { 4096, 2048, CU_AD_FORMAT_FLOAT, 1 };
	CUmipmappedArray mipmap;
	CUarray array, second;

	CHECK(cuArray3DCreate_v2(&array, &shape));
	REQUIRE_EQUAL(left(), 32 * MIB);
	OVER(cuMipmappedArrayCreate(&mipmap, &shape, 2));
	CHECK(cuArrayCreate_v2(&second, &flat));
	OVER(cuArrayCreate_v2(&second, &(CUDA_ARRAY_DESCRIPTOR){ 64, 64, CU_AD_FORMAT_FLOAT, 1 }));
	CHECK(cuArrayDestroy(array));
	CHECK(cuArrayDestroy(second));
	CHECK(cuMipmappedArrayCreate(&mipmap, &shape, 2));
	REQUIRE_EQUAL(left(), 24 * MIB);
	CHECK(cuMipmappedArrayDestroy(mipmap));
	/* There are as many layers on each level. */
	shape = (CUDA_ARRAY3D_DESCRIPTOR){
		.Width = 1024, .Height = 1024, .Depth = 8, .Format = CU_AD_FORMAT_UNSIGNED_INT8,
		.NumChannels = 1, .Flags = CUDA_ARRAY3D_LAYERED,
	};
	CHECK(cuMipmappedArrayCreate(&mipmap, &shape, 2));
	REQUIRE_EQUAL(left(), LIMIT - 10 * MIB);
	CHECK(cuMipmappedArrayDestroy(mipmap));
	/* 16 MiB, which the software GPU does not have. */
	flat = (CUDA_ARRAY_DESCRIPTOR){ 2048, 2048, CU_AD_FORMAT_UNORM_INT8X4, 4 };
	REQUIRE(cuArrayCreate_v2(&array, &flat) != CUDA_ERROR_OUT_OF_MEMORY);
}

static void graphs(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {
			.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
		},
		.bytesize = 48 * MIB,
	};
	CUgraphNodeParams child = {
		.type = CU_GRAPH_NODE_TYPE_GRAPH,
		.graph = { .ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE },
	};
	CUgraphNode node, gone;
	CUgraphExec executable;
	CUdeviceptr memory;
	CUgraph graph, parent;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
	CHECK(cuGraphAddMemFreeNode(&gone, graph, &node, 1, params.dptr));
	CHECK(cuMemAlloc_v2(&memory, 20 * MIB));
	OVER(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuMemFree_v2(memory));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	REQUIRE_EQUAL(left(), 16 * MIB);
	CHECK(cuGraphExecDestroy(executable));
	/* A graph that it becomes a part of has what it has. */
	child.graph.graph = graph;
	CHECK(cuGraphCreate(&parent, 0));
	CHECK(cuGraphAddNode_v2(&node, parent, NULL, NULL, 0, &child));
	CHECK(cuGraphInstantiateWithFlags(&executable, parent, 0));
	REQUIRE_EQUAL(left(), 16 * MIB);
	CHECK(cuGraphDestroy(parent));
	REQUIRE_EQUAL(left(), 16 * MIB);
	CHECK(cuGraphExecDestroy(executable));
}

/* What a capture allocates is the graph's, as a node's is. */
static void captures(void)
{
	CUdeviceptr memory, plain;
	CUgraphExec executable;
	CUstream stream;
	CUgraph graph;

	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OVER(cuMemAllocAsync(&memory, 65 * MIB, stream));
	CHECK(cuMemAllocAsync(&memory, 40 * MIB, stream));
	CHECK(cuMemFreeAsync(memory, stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	REQUIRE_EQUAL(left(), LIMIT);
	CHECK(cuMemAlloc_v2(&plain, 30 * MIB));
	OVER(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuMemFree_v2(plain));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	REQUIRE_EQUAL(left(), 24 * MIB);
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	REQUIRE_EQUAL(left(), LIMIT);
	/* One that is broken off leaves nothing, also to a graph that comes to lie where its was. */
	for (int i = 0; i < 3; i++) {
		CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
		CHECK(cuMemAllocAsync(&memory, 10 * MIB, stream));
		EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		EXPECT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		CHECK(cuGraphCreate(&graph, 0));
		CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
		REQUIRE_EQUAL(left(), LIMIT);
		CHECK(cuGraphExecDestroy(executable));
		CHECK(cuGraphDestroy(graph));
	}
	CHECK(cuStreamDestroy_v2(stream));
}

/* Memory that a graph allocates and does not free is there from its launch on until somebody frees it. */
static void outliving(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {
			.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
		},
		.bytesize = 40 * MIB,
	};
	CUgraphExec executable;
	CUdeviceptr memory;
	CUgraphNode node;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	REQUIRE_EQUAL(left(), LIMIT);
	CHECK(cuMemAlloc_v2(&memory, 30 * MIB));
	OVER(cuGraphLaunch(executable, NULL));
	CHECK(cuMemFree_v2(memory));
	CHECK(cuGraphLaunch(executable, NULL));
	EXPECT(cuGraphLaunch(executable, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuCtxSynchronize());
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	REQUIRE_EQUAL(left(), 24 * MIB);
	CHECK(cuMemFreeAsync(params.dptr, NULL));
	CHECK(cuCtxSynchronize());
}

static void contexts(void)
{
	CUdeviceptr memory;
	CUcontext context;

	CHECK(cuCtxCreate_v2(&context, 0, 0));
	CHECK(cuMemAlloc_v2(&memory, 60 * MIB));
	CHECK(cuMemAllocAsync(&memory, 4 * MIB, NULL));
	OVER(cuMemAlloc_v2(&memory, 1));
	CHECK(cuCtxDestroy_v2(context));
}

/* An executable goes with it, and what pools have given. */
static void reset(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {
			.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
		},
		.bytesize = 16 * MIB,
	};
	CUgraphNode node, gone;
	CUgraphExec executable;
	CUdeviceptr memory;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
	CHECK(cuGraphAddMemFreeNode(&gone, graph, &node, 1, params.dptr));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuMemAllocAsync(&memory, 8 * MIB, NULL));
	CHECK(cuMemAlloc_v2(&memory, 8 * MIB));
	REQUIRE_EQUAL(left(), 32 * MIB);
	CHECK(cuDevicePrimaryCtxReset_v2(0));
	begin();
}

/* What is to be told nowhere is an error, and not the session's end. */
static void nowhere(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
	};
	const CUmulticastObjectProp shape = { .numDevices = 1, .size = 2 * MIB };
	const CUDA_ARRAY3D_DESCRIPTOR array = { .Width = 4, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1 };
	CUDA_GRAPH_INSTANTIATE_PARAMS params = { 0 };
	CUmemoryPool pool;
	CUgraphNode node;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuDeviceGetMemPool(&pool, 0));
	EXPECT(cuGraphInstantiate(NULL, graph, NULL, NULL, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphInstantiate_v2(NULL, graph, NULL, NULL, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphInstantiateWithFlags(NULL, graph, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphInstantiateWithParams(NULL, graph, &params), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphCreate(NULL, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphAddMemAllocNode(&node, graph, NULL, 0, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAlloc_v2(NULL, MIB), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocManaged(NULL, MIB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocAsync(NULL, MIB, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocFromPoolAsync(NULL, MIB, pool, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemCreate(NULL, 2 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastCreate(NULL, &shape), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuArray3DCreate_v2(NULL, &array), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMipmappedArrayCreate(NULL, &array, 1), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphDestroy(graph));
}

int main(int argc, char **argv)
{
	CUdeviceptr memory;
	size_t total;

	begin();
	if (argc > 1) {
		/* Hold that many mebibytes until nobody writes any more. */
		CUresult result = cuMemAlloc_v2(&memory, (size_t)atoi(argv[1]) * MIB);

		printf("%d\n", result);
		fflush(stdout);
		getchar();
		return 0;
	}
	CHECK(cuDeviceTotalMem_v2(&total, 0));
	REQUIRE_EQUAL(total, LIMIT);
	plain();
	managed();
	REQUIRE_EQUAL(left(), LIMIT);
	ordered();
	REQUIRE_EQUAL(left(), LIMIT);
	virtual();
	REQUIRE_EQUAL(left(), LIMIT);
	multicast();
	REQUIRE_EQUAL(left(), LIMIT);
	multicast_by_several_handles();
	REQUIRE_EQUAL(left(), LIMIT);
	arrays();
	REQUIRE_EQUAL(left(), LIMIT);
	graphs();
	REQUIRE_EQUAL(left(), LIMIT);
	captures();
	REQUIRE_EQUAL(left(), LIMIT);
	outliving();
	REQUIRE_EQUAL(left(), LIMIT);
	nowhere();
	REQUIRE_EQUAL(left(), LIMIT);
	contexts();
	begin();
	REQUIRE_EQUAL(left(), LIMIT);
	reset();
	REQUIRE_EQUAL(left(), LIMIT);
	return 0;
}
