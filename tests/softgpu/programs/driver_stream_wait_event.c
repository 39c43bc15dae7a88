/* A stream waits for the work that the event recorded, not for later work, and
 * not for a later record of the same event. */
#include "driver.h"

int main(void)
{
	CUstream first, second;
	CUdeviceptr word;
	CUevent event;
	struct gate before, after;
	unsigned seen;

	begin();
	CHECK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuMemAlloc(&word, 4));

	gate_close(&before, first);
	CHECK(cuMemsetD32Async(word, 1, 1, first));
	CHECK(cuEventRecord(event, first));
	CHECK(cuStreamWaitEvent(second, event, 0));
	CHECK(launch_store(kernel("store"), word, 2, second));
	EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	EXPECT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
	gate_open(&before);
	CHECK(cuStreamSynchronize(first));
	gate_close(&after, first);
	CHECK(cuEventRecord(event, first));
	CHECK(cuStreamSynchronize(second));
	CHECK(cuMemcpyDtoHAsync(&seen, word, 4, second));
	REQUIRE_EQUAL(seen, 2);
	EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	gate_open(&after);
	CHECK(cuEventSynchronize(event));
	return 0;
}
