/* No bytes are no memory, and from a pool no error; captured they are no node.  Even the smallest pool holds something,
 * and pools that are not a device's own are not there. */
#include "graph.h"

CUresult cuMemGetMemPool(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);
CUresult cuMemGetDefaultMemPool(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);

static CUmemoryPool pool;
static CUstream stream;

static void no_bytes(void)
{
	CUdeviceptr memory = 1;
	CUgraph graph;
	size_t count;

	EXPECT(cuMemAlloc(&memory, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemAllocAsync(&memory, 0, stream));
	REQUIRE_EQUAL(memory, 0);
	CHECK(cuMemFreeAsync(memory, stream));
	memory = 1;
	CHECK(cuMemAllocFromPoolAsync(&memory, 0, pool, stream));
	REQUIRE_EQUAL(memory, 0);
	EXPECT(cuMemAllocFromPoolAsync(&memory, 0, NULL, stream), CUDA_ERROR_INVALID_VALUE);

	memory = 1;
	CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuMemAllocAsync(&memory, 0, stream));
	REQUIRE_EQUAL(memory, 0);
	graph = end_capture(stream);
	CHECK(cuGraphGetNodes(graph, NULL, &count));
	REQUIRE_EQUAL(count, 0);
	CHECK(cuGraphDestroy(graph));
}

static void smallest_pool(void)
{
	CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
		.maxSize = 2048,
	};
	CUdeviceptr first, second, large;
	CUmemoryPool small;

	CHECK(cuMemPoolCreate(&small, &properties));
	CHECK(cuMemAllocFromPoolAsync(&first, 64, small, stream));
	CHECK(cuMemAllocFromPoolAsync(&second, 64, small, stream));
	REQUIRE(first != second);
	EXPECT(cuMemAllocFromPoolAsync(&large, 64ul << 20, small, stream), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cuMemFreeAsync(first, stream));
	CHECK(cuMemFreeAsync(second, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemPoolDestroy(small));
}

int main(void)
{
	CUmemLocation device = { .type = CU_MEM_LOCATION_TYPE_DEVICE }, host = { .type = CU_MEM_LOCATION_TYPE_HOST };
	CUmemoryPool other;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemGetMemPool(&pool, &device, CU_MEM_ALLOCATION_TYPE_PINNED));
	no_bytes();
	smallest_pool();
	EXPECT(cuMemGetMemPool(&other, &host, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuMemGetDefaultMemPool(&other, &device, CU_MEM_ALLOCATION_TYPE_MANAGED), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuMemGetDefaultMemPool(&other, &device, CU_MEM_ALLOCATION_TYPE_INVALID), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
