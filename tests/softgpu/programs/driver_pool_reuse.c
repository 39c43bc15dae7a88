/* softgpu: mem=64MiB
 * What was freed in a stream is that stream's to use again at once, other streams'
 * when it got there, and theirs before only with a dependency. */
#include "driver.h"

static CUmemoryPool own_pool(void)
{
	CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
		.maxSize = 16ul << 20,
	};
	CUmemoryPool pool;

	CHECK(cuMemPoolCreate(&pool, &properties));
	return pool;
}

static cuuint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
	cuuint64_t value;

	CHECK(cuMemPoolGetAttribute(pool, which, &value));
	return value;
}

int main(void)
{
	CUdeviceptr first, second, third;
	CUmemoryPool pool;
	CUstream here, there;
	struct gate gate;
	unsigned value;
	int no = 0, yes = 1;

	begin();
	pool = own_pool();
	CHECK(cuStreamCreate(&here, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));

	/* The same stream: the same memory, long before the free is done. */
	CHECK(cuMemAllocFromPoolAsync(&first, 16ul << 20, pool, here));
	gate_close(&gate, here);
	CHECK(cuMemsetD32Async(first, 1, 1, here));
	CHECK(cuMemFreeAsync(first, here));
	CHECK(cuMemAllocFromPoolAsync(&second, 10ul << 20, pool, here));
	REQUIRE_EQUAL(second, first);
	CHECK(cuMemAllocFromPoolAsync(&third, 6ul << 20, pool, here));
	REQUIRE_EQUAL(third, first + (10ul << 20));
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 16ul << 20);
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 16ul << 20);
	CHECK(cuMemFreeAsync(second, here));

	/* Another stream, which may not wait: not yet. */
	CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &no));
	gate_open(&gate);
	CHECK(cuStreamSynchronize(here));
	CHECK(cuMemFreeAsync(third, here));
	CHECK(cuStreamSynchronize(here));
	CHECK(cuMemAllocFromPoolAsync(&first, 16ul << 20, pool, there));	/* joined again */
	CHECK(cuMemFreeAsync(first, there));
	CHECK(cuStreamSynchronize(there));

	/* And with a dependency: its work comes after what is queued for the memory. */
	CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &yes));
	CHECK(cuMemAllocFromPoolAsync(&first, 16ul << 20, pool, here));
	gate_close(&gate, here);
	CHECK(cuMemsetD32Async(first, 1, 1, here));
	CHECK(cuMemFreeAsync(first, here));
	CHECK(cuMemAllocFromPoolAsync(&second, 16ul << 20, pool, there));
	REQUIRE_EQUAL(second, first);
	CHECK(cuMemsetD32Async(second, 2, 1, there));
	EXPECT(cuStreamQuery(there), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	CHECK(cuStreamSynchronize(there));
	CHECK(cuMemcpyDtoH(&value, second, 4));
	REQUIRE_EQUAL(value, 2);

	/* A pool is not larger than it may be. */
	EXPECT(cuMemAllocFromPoolAsync(&third, 1, pool, here), CUDA_ERROR_OUT_OF_MEMORY);

	/* What it still has when it is destroyed lives on, and goes with its last piece. */
	CHECK(cuMemPoolDestroy(pool));
	EXPECT(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemcpyDtoH(&value, second, 4));
	CHECK(cuMemFreeAsync(second, there));
	CHECK(cuStreamSynchronize(there));
	CHECK(cuMemAlloc(&first, 64ul << 20));
	return 0;
}
