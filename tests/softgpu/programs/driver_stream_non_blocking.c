/* A non-blocking stream and the legacy stream don't wait for each other. */
#include "driver.h"

int main(void)
{
	CUstream free_stream;
	CUdeviceptr word;
	struct gate gate;
	unsigned seen;

	begin();
	CHECK(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAlloc(&word, 4));

	gate_close(&gate, NULL);
	CHECK(launch_store(kernel("store"), word, 5, free_stream));
	CHECK(cuStreamSynchronize(free_stream));
	gate_open(&gate);
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 5);

	gate_close(&gate, free_stream);
	CHECK(cuMemsetD32(word, 6, 1));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 6);
	EXPECT(cuStreamQuery(free_stream), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	CHECK(cuStreamSynchronize(free_stream));
	return 0;
}
