/* A thread with little stack launches and waits, and so do many at once. */
#include "driver.h"

#define THREADS 8
#define LAUNCHES 50

static CUcontext context;
static CUfunction store;
static CUdeviceptr memory;

static void *launch_and_wait(void *argument)
{
	unsigned index = (unsigned)(size_t)argument;

	CHECK(cuCtxSetCurrent(context));
	for (unsigned k = 0; k < LAUNCHES; k++) {
		unsigned value = 0;

		CHECK(launch_store(store, memory + 4 * index, 1000 * index + k, NULL));
		CHECK(cuCtxSynchronize());
		CHECK(cuMemcpyDtoH(&value, memory + 4 * index, 4));
		REQUIRE_EQUAL(value, 1000 * index + k);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];

	context = begin();
	store = kernel("store");
	CHECK(cuMemAlloc(&memory, 4 * THREADS));
	for (size_t k = 0; k < THREADS; k++) {
		pthread_attr_t attributes;

		pthread_attr_init(&attributes);
		/* Every other one has next to nothing. */
		if (k % 2)
			pthread_attr_setstacksize(&attributes, 64 << 10);
		REQUIRE(!pthread_create(&threads[k], &attributes, launch_and_wait, (void *)k));
		pthread_attr_destroy(&attributes);
	}
	for (unsigned k = 0; k < THREADS; k++)
		pthread_join(threads[k], NULL);
	return 0;
}
