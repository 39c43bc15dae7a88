/* A pool that is the device's current one goes while other threads allocate from it: what they have got stays theirs. */
#include "driver.h"

#define THREADS 3
#define ROUNDS 100000

static CUcontext context;
static bool over;	/* atomic */

static void *allocate(void *unused)
{
	CUdeviceptr address;
	CUstream stream;

	(void)unused;
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		CHECK(cuMemAllocAsync(&address, 512, stream));
		CHECK(cuMemFreeAsync(address, stream));
	}
	CHECK(cuStreamDestroy(stream));
	return NULL;
}

/* Where the pool's record was there is something else now. */
static void spoil_freed_memory(void)
{
	void *blocks[8];

	for (size_t i = 0; i < 8; i++) {
		blocks[i] = malloc(16 * (i + 7));
		memset(blocks[i], 0xff, 16 * (i + 7));
	}
	for (size_t i = 0; i < 8; i++)
		free(blocks[i]);
}

int main(void)
{
	const CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
	};
	pthread_t threads[THREADS];
	CUmemoryPool pool;

	context = begin();
	for (int i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, allocate, NULL));
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(cuMemPoolCreate(&pool, &properties));
		CHECK(cuDeviceSetMemPool(0, pool));
		CHECK(cuMemPoolDestroy(pool));
		spoil_freed_memory();
	}
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	for (int i = 0; i < THREADS; i++)
		REQUIRE(!pthread_join(threads[i], NULL));
	return 0;
}
