/* While a capture goes on, what is refused is told by the call that was, and by no other. */
#include "../calls.h"

/* A wait that would join two captures ends both. */
static void refuse(CUstream one, CUstream other, CUdeviceptr word)
{
	CUevent event;
	CUgraph graph;

	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuEventRecord(event, one));
	EXPECT(cuStreamWaitEvent(other, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
	EXPECT(cuMemsetD32Async(word, 6, 1, one), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT(cuStreamEndCapture(one, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK(cuEventDestroy_v2(event));
}

int main(void)
{
	CUstreamCaptureStatus status;
	CUstream one, other;
	unsigned value = 7;
	CUdeviceptr word;
	CUgraph graph;

	begin();
	CHECK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	word = words(1, 5);
	refuse(one, other, word);
	CHECK(cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_RELAXED));
	for (int times = 0; times < 2; times++) {
		CHECK(cuStreamIsCapturing(one, &status));
		REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
		CHECK(cuMemcpyHtoDAsync_v2(word, &value, sizeof(value), one));
		CHECK(cuStreamEndCapture(one, &graph));
		CHECK(cuGraphDestroy(graph));
		REQUIRE_EQUAL(word_at(word), 5);
		CHECK(cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_RELAXED));
	}
	CHECK(cuStreamEndCapture(one, &graph));
	CHECK(cuGraphDestroy(graph));
	return 0;
}
