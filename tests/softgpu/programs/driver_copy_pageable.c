/* Asynchronous copies and pageable memory: the source may be changed as soon as
 * the call returns, the destination is complete when it does. */
#include "driver.h"

#define LARGE (3ul << 20)

static unsigned char source[LARGE], sink[LARGE];

int main(void)
{
	CUdeviceptr memory;
	struct gate gate;
	CUstream stream;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAlloc(&memory, LARGE));
	memset(source, 1, LARGE);
	gate_close(&gate, stream);
	CHECK(cuMemcpyHtoDAsync(memory, source, 4096, stream));
	memset(source, 2, LARGE);
	gate_open(&gate);
	CHECK(cuMemcpyDtoHAsync(sink, memory, 4096, stream));
	REQUIRE_EQUAL(sink[0], 1);
	REQUIRE_EQUAL(sink[4095], 1);

	CHECK(cuMemcpyHtoDAsync(memory, source, LARGE, stream));
	memset(source, 3, LARGE);
	CHECK(cuMemcpyDtoHAsync(sink, memory, LARGE, stream));
	for (size_t i = 0; i < LARGE; i++)
		REQUIRE(sink[i] == 2);
	return 0;
}
