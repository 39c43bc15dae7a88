/* The legacy default stream waits for blocking streams, and they for it. */
#include "driver.h"

int main(void)
{
	CUstream blocking;
	CUdeviceptr word;
	struct gate gate;
	unsigned seen;

	begin();
	CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	CHECK(cuMemAlloc(&word, 4));
	CHECK(cuMemsetD32(word, 1, 1));

	gate_close(&gate, blocking);
	CHECK(cuMemsetD32Async(word, 2, 1, blocking));
	CHECK(launch_store(kernel("store"), word, 3, NULL));
	EXPECT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 3);

	gate_close(&gate, NULL);
	CHECK(cuMemsetD32Async(word, 4, 1, blocking));
	EXPECT(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	CHECK(cuStreamSynchronize(blocking));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 4);
	return 0;
}
