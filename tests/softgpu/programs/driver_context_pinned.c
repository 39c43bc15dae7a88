/* softgpu: grace_s=1 */
/* Pinned memory that goes with its context, while another one copies from it: that comes first.  Where it takes longer
 * than a context waits for its work, the memory stays. */
#include "driver.h"

#define BYTES (4ul << 20)

static struct gate held;

static void *open_held(void *unused)
{
	gate_open(&held);
	return unused;
}

static void copy_across_end(CUdeviceptr memory, CUstream stream, CUcontext own, bool opens)
{
	unsigned *pinned, seen = 0;
	CUcontext other;
	pthread_t opener;

	CHECK(cuCtxCreate(&other, 0, 0));
	CHECK(cuMemHostAlloc((void **)&pinned, BYTES, CU_MEMHOSTALLOC_PORTABLE));
	for (size_t i = 0; i < BYTES / 4; i++)
		pinned[i] = 7;
	CHECK(cuCtxSetCurrent(own));
	CHECK(cuMemsetD32(memory, 0, BYTES / 4));
	CHECK(cuCtxSynchronize());
	gate_close(&held, stream);
	CHECK(cuMemcpyHtoDAsync(memory, pinned, BYTES, stream));
	if (opens)
		REQUIRE(!pthread_create(&opener, NULL, open_held, NULL));
	CHECK(cuCtxDestroy(other));
	if (opens)
		pthread_join(opener, NULL);
	else
		gate_open(&held);
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemcpyDtoH(&seen, memory + BYTES - 4, 4));
	REQUIRE_EQUAL(seen, 7);
}

int main(void)
{
	CUcontext own = begin();
	CUdeviceptr memory;
	CUstream stream;

	CHECK(cuMemAlloc(&memory, BYTES));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	copy_across_end(memory, stream, own, true);
	copy_across_end(memory, stream, own, false);
	return 0;
}
