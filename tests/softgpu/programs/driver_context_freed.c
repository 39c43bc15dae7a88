/* Memory that a thread of another context frees while its own context ends: one of both does it. */
#include "driver.h"

#define ROUNDS 400

static CUcontext own;
static volatile CUdeviceptr memory;
static void *volatile pinned;
static volatile bool there, over;

static void *free_all(void *unused)
{
	CHECK(cuCtxSetCurrent(own));
	while (!over) {
		CUdeviceptr device;
		void *host;

		/* Not to be late. */
		if (!there)
			continue;
		device = memory;
		host = pinned;
		there = false;
		cuMemFree(device);
		cuMemFreeHost(host);
	}
	return unused;
}

int main(void)
{
	pthread_t thread;

	CHECK(cuInit(0));
	CHECK(cuCtxCreate(&own, 0, 0));
	REQUIRE(!pthread_create(&thread, NULL, free_all, NULL));
	for (int i = 0; i < ROUNDS; i++) {
		CUdeviceptr device;
		CUcontext other;
		void *host;

		CHECK(cuCtxCreate(&other, 0, 0));
		CHECK(cuMemAlloc(&device, 4096));
		CHECK(cuMemHostAlloc(&host, 4096, 0));
		memory = device;
		pinned = host;
		there = true;
		while (there && i % 2)
			;
		CHECK(cuCtxDestroy(other));
	}
	over = true;
	pthread_join(thread, NULL);
	return 0;
}
