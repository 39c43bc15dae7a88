/* softgpu: mem=64MiB
 * Stream-ordered memory: a queued free counts as free for the next request,
 * which waits for it, and can't be queued twice. */
#include "driver.h"

static struct gate gate;

static void *opens_the_gate(void *unused)
{
	gate_open(&gate);
	return unused;
}

int main(void)
{
	CUdeviceptr first, second;
	CUmemoryPool pool;
	pthread_t thread;
	cuuint64_t used;
	CUstream stream;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
	CHECK(cuMemAllocAsync(&first, 40ul << 20, stream));
	CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	REQUIRE_EQUAL(used, 40ul << 20);
	gate_close(&gate, stream);
	CHECK(cuMemsetD32Async(first, 1, 1, stream));
	CHECK(cuMemFreeAsync(first, stream));
	EXPECT(cuMemFreeAsync(first, stream), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFree(first), CUDA_ERROR_INVALID_VALUE);
	REQUIRE(!pthread_create(&thread, NULL, opens_the_gate, NULL));
	CHECK(cuMemAllocAsync(&second, 40ul << 20, stream));
	pthread_join(thread, NULL);
	CHECK(cuMemFree(second));
	CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	REQUIRE_EQUAL(used, 0);
	CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used));
	REQUIRE_EQUAL(used, 40ul << 20);
	return 0;
}
