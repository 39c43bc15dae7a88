/* Asynchronous copies of pinned memory happen in stream order: the source is
 * read when the copy's turn comes. */
#include "driver.h"

int main(void)
{
	unsigned *source, *sink;
	CUdeviceptr word;
	struct gate gate;
	CUstream stream;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemHostAlloc((void **)&source, sizeof *source, 0));
	CHECK(cuMemHostAlloc((void **)&sink, sizeof *sink, 0));
	CHECK(cuMemAlloc(&word, 4));
	*source = 1;
	*sink = 0;
	gate_close(&gate, stream);
	CHECK(cuMemcpyHtoDAsync(word, source, 4, stream));
	CHECK(cuMemcpyDtoHAsync(sink, word, 4, stream));
	*source = 2;
	REQUIRE_EQUAL(*sink, 0);
	gate_open(&gate);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(*sink, 2);
	return 0;
}
