/* softgpu: mem=64MiB
 * A pool keeps what it need not, up to its threshold, until it is trimmed or the
 * memory is wanted elsewhere. */
#include "driver.h"

static size_t available(void)
{
	size_t free, total;

	CHECK(cuMemGetInfo(&free, &total));
	return free;
}

static cuuint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
	cuuint64_t value;

	CHECK(cuMemPoolGetAttribute(pool, which, &value));
	return value;
}

int main(void)
{
	cuuint64_t threshold = 32ul << 20, zero = 0, one = 1;
	CUdeviceptr memory, other;
	CUmemoryPool pool;
	size_t before;

	begin();
	before = available();
	CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);

	/* The default: nothing is kept behind the next wait. */
	CHECK(cuMemAllocAsync(&memory, 20ul << 20, NULL));
	CHECK(cuMemFreeAsync(memory, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(available(), before);
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 20ul << 20);

	/* With a threshold it is kept, and used again. */
	CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	CHECK(cuMemAllocAsync(&memory, 20ul << 20, NULL));
	CHECK(cuMemFreeAsync(memory, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(available(), before - (20ul << 20));
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
	CHECK(cuMemAllocAsync(&other, 20ul << 20, NULL));
	REQUIRE_EQUAL(other, memory);
	CHECK(cuMemAllocAsync(&memory, 8ul << 20, NULL));
	CHECK(cuMemFreeAsync(other, NULL));
	CHECK(cuStreamSynchronize(NULL));
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 28ul << 20);

	/* What is used is not trimmed. */
	CHECK(cuMemPoolTrimTo(pool, 0));
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 8ul << 20);
	CHECK(cuMemFreeAsync(memory, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 8ul << 20);

	/* High-water marks go back to what there is, and nowhere else. */
	EXPECT(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &one),
	       CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 8ul << 20);

	/* Who needs it all gets it. */
	CHECK(cuMemAlloc(&other, 64ul << 20));
	REQUIRE_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
	return 0;
}
