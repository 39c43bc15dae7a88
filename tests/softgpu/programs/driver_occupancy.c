/* softgpu: cc=8.6,sms=10
 * The limits of compute capability 8.6: 48 warps and 16 blocks on a
 * multiprocessor, 100 KiB of shared memory of which each block loses one. */
#include "driver.h"

static int blocks(CUfunction function, int threads, size_t shared)
{
	int count;

	CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, threads, shared));
	return count;
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
	return 0;
}
