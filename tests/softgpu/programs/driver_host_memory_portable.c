/* softgpu: count=2,mem=64MiB
 * Pinned memory is for all devices: who gives it back waits for the work of all of them. */
#include "gate.h"

#include <stdint.h>

#define BYTES (1ul << 20)	/* more than is copied aside */

static CUcontext here, there;
static CUstream stream;
static CUfunction waits;
static CUdeviceptr memory;

/* The other device copies from there as soon as the gate is open. */
static pthread_t copy_later(const void *source)
{
	*gate = 0;
	CHECK(cuCtxPushCurrent(there));
	CHECK(cuMemsetD8(memory, 0, BYTES));
	CHECK(cuCtxSynchronize());
	gate_await(waits, stream);
	CHECK(cuMemcpyHtoDAsync(memory, source, BYTES, stream));
	CHECK(cuCtxPopCurrent(NULL));
	return gate_open_behind_call();
}

static void expect_copied(pthread_t thread)
{
	unsigned char last;

	REQUIRE(!pthread_join(thread, NULL));
	CHECK(cuCtxPushCurrent(there));
	CHECK(cuCtxSynchronize());
	CHECK(cuMemcpyDtoH(&last, memory + BYTES - 1, 1));
	CHECK(cuCtxPopCurrent(NULL));
	REQUIRE_EQUAL(last, 7);
}

int main(void)
{
	pthread_t thread;
	void *own;
	unsigned char *pinned;

	CHECK(cuInit(0));
	CHECK(cuCtxCreate(&there, 0, 1));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAlloc(&memory, BYTES));
	waits = gate_kernel();
	CHECK(cuCtxCreate(&here, 0, 0));
	gate_make();

	CHECK(cuMemHostAlloc((void **)&pinned, BYTES, CU_MEMHOSTALLOC_PORTABLE));
	memset(pinned, 7, BYTES);
	thread = copy_later(pinned);
	CHECK(cuMemFreeHost(pinned));
	expect_copied(thread);

	REQUIRE(!posix_memalign(&own, 4096, BYTES));
	memset(own, 7, BYTES);
	CHECK(cuMemHostRegister(own, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
	thread = copy_later(own);
	CHECK(cuMemHostUnregister(own));
	memset(own, 9, BYTES);
	expect_copied(thread);
	free(own);
	return 0;
}
