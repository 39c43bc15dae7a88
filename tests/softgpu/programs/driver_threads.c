/* Many threads at once, with the legacy stream, streams and memory of their
 * own: every result is right. */
#include "driver.h"

#define THREADS 8
#define ROUNDS 200

static CUcontext context;
static CUfunction store;

static void *work(void *argument)
{
	unsigned base = (unsigned)(uintptr_t)argument * ROUNDS, seen;
	CUdeviceptr memory;
	CUstream stream;
	CUevent event;

	CHECK(cuCtxSetCurrent(context));
	CHECK(cuStreamCreate(&stream, base % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
	CHECK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	for (unsigned i = 0; i < ROUNDS; i++) {
		CHECK(cuMemAlloc(&memory, 4096));
		CHECK(cuMemsetD32Async(memory, 0, 1024, stream));
		CHECK(launch_store(store, memory, base + i, stream));
		CHECK(cuEventRecord(event, stream));
		CHECK(cuStreamWaitEvent(NULL, event, 0));
		CHECK(cuMemcpyDtoH(&seen, memory, 4));
		REQUIRE_EQUAL(seen, base + i);
		CHECK(cuMemFree(memory));
	}
	CHECK(cuEventDestroy(event));
	CHECK(cuStreamDestroy(stream));
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];

	context = begin();
	store = kernel("store");
	for (uintptr_t i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, work, (void *)i));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
