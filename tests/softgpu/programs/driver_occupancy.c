/* softgpu: cc=8.6,sms=10
 * The limits of compute capability 8.6: 48 warps and 16 blocks on a
 * multiprocessor, 100 KiB of shared memory of which each block loses one. */
#include "driver.h"

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *, CUfunction, int, int);

static int blocks(CUfunction function, int threads, size_t shared)
{
	int count;

	CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, threads, shared));
	return count;
}

static size_t dynamic_shared(CUfunction function, int count)
{
	size_t bytes;

	CHECK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, count, 64));
	return bytes;
}

/* No more than a launch may have: 48 KiB, and more for a function that opted in. */
static void shared_for_a_block(CUfunction store)
{
	CUdeviceptr word;
	unsigned value = 1;
	void *params[] = { &word, &value };
	size_t bytes;

	CHECK(cuMemAlloc(&word, 4));
	bytes = dynamic_shared(store, 1);
	REQUIRE_EQUAL(bytes, 48 << 10);
	CHECK(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, (unsigned)bytes, NULL, params, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(dynamic_shared(store, 4), 24 << 10);
	CHECK(cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 99 << 10));
	REQUIRE_EQUAL(dynamic_shared(store, 1), 99 << 10);
	REQUIRE_EQUAL(dynamic_shared(store, 4), 24 << 10);
	EXPECT(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, store, 17, 64), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFree(word));
}

int main(void)
{
	CUfunction store, bounded;
	int grid, block;

	begin();
	store = kernel("store");
	bounded = kernel("bounded");
	REQUIRE_EQUAL(blocks(store, 32, 0), 16);
	REQUIRE_EQUAL(blocks(store, 256, 0), 6);
	REQUIRE_EQUAL(blocks(store, 257, 0), 5);
	REQUIRE_EQUAL(blocks(store, 1024, 0), 1);
	REQUIRE_EQUAL(blocks(store, 1025, 0), 0);
	REQUIRE_EQUAL(blocks(store, 64, 48 << 10), 2);
	REQUIRE_EQUAL(blocks(store, 64, 49 << 10), 2);
	REQUIRE_EQUAL(blocks(store, 64, (49 << 10) + 1), 1);
	REQUIRE_EQUAL(blocks(store, 64, 99 << 10), 1);
	REQUIRE_EQUAL(blocks(store, 64, (99 << 10) + 1), 0);
	EXPECT(cuOccupancyMaxActiveBlocksPerMultiprocessor(&grid, store, 0, 0),
	       CUDA_ERROR_INVALID_VALUE);
	/* 48 warps are full with two blocks of 768 threads, not with one of 1024. */
	CHECK(cuOccupancyMaxPotentialBlockSize(&grid, &block, store, NULL, 0, 0));
	REQUIRE_EQUAL(block, 768);
	REQUIRE_EQUAL(grid, 20);
	CHECK(cuOccupancyMaxPotentialBlockSize(&grid, &block, bounded, NULL, 0, 0));
	REQUIRE_EQUAL(block, 64);
	shared_for_a_block(store);
	return 0;
}
