/* What the program's processor does in a stream's place, copies and fills of host memory, waits for what the stream would
 * wait for: work of the legacy stream, also where the stream has none of its own, and the other way round. */
#include "../calls.h"

#include <pthread.h>

#define ROUNDS 40u

static CUcontext context;
static CUstream beside;		/* which waits for nobody */
static CUdeviceptr gate;
static unsigned turn;

static void *opener(void *opaque)
{
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuStreamWriteValue32_v2(beside, gate, turn, 0));
	CHECK(cuStreamSynchronize(beside));
	return opaque;
}

/* Work ahead in `first`: what is copied to `pinned` when the gate is open. */
static void hold(CUstream first, unsigned *pinned, CUdeviceptr device, pthread_t *thread)
{
	CHECK(cuStreamWaitValue32_v2(first, gate, ++turn, CU_STREAM_WAIT_VALUE_GEQ));
	CHECK(cuMemsetD32Async(device, turn, 1, first));
	CHECK(cuMemcpyDtoHAsync_v2(pinned, device, 4, first));
	REQUIRE(pthread_create(thread, NULL, opener, NULL) == 0);
}

int main(void)
{
	CUdeviceptr device;
	CUstream stream;
	unsigned *from, *to;
	pthread_t thread;

	context = begin();
	gate = words(1, 0);
	device = words(1, 0);
	CHECK(cuMemHostAlloc((void **)&from, 4, 0));
	CHECK(cuMemHostAlloc((void **)&to, 4, 0));
	CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
	CHECK(cuStreamCreate(&beside, CU_STREAM_NON_BLOCKING));
	for (unsigned round = 0; round < ROUNDS; round++) {
		const bool legacy_first = round % 2;
		CUstream first = legacy_first ? CU_STREAM_LEGACY : stream, second = legacy_first ? stream : CU_STREAM_LEGACY;

		hold(first, from, device, &thread);
		CHECK(cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, 4, second));
		REQUIRE_EQUAL(*to, turn);
		REQUIRE(pthread_join(thread, NULL) == 0);
		/* what is filled here is not overwritten by what was ahead */
		hold(first, from, device, &thread);
		CHECK(cuMemsetD32Async((CUdeviceptr)(uintptr_t)from, 7, 1, second));
		CHECK(cuStreamSynchronize(second));
		REQUIRE_EQUAL(*from, 7);
		REQUIRE(pthread_join(thread, NULL) == 0);
		CHECK(cuCtxSynchronize());
		REQUIRE_EQUAL(*from, 7);
	}
	printf("ok\n");
	return 0;
}
