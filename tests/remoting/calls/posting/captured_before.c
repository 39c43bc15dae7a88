/* captured_before N: captures that end well and badly, then N times what is to know whether a stream is captured.
 * Meanwhile all captures are told as what they are. */
#include "../calls.h"

static CUstreamCaptureStatus status_of(CUstream stream)
{
	CUstreamCaptureStatus status;

	CHECK(cuStreamIsCapturing(stream, &status));
	return status;
}

static void fork_to(CUstream other, CUstream stream, CUevent event)
{
	CHECK(cuEventRecord(event, stream));
	CHECK(cuStreamWaitEvent(other, event, 0));
}

int main(int argc, char **argv)
{
	CUstream stream, other;
	CUdeviceptr word;
	CUgraph graph;
	CUevent event;
	static unsigned host;

	REQUIRE(argc == 2);
	begin();
	word = words(1, 0);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	/* What can't begin, or end, neither begins nor ends another one. */
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_ILLEGAL_STATE);
	EXPECT(cuStreamEndCapture(other, &graph), CUDA_ERROR_ILLEGAL_STATE);
	REQUIRE(status_of(stream) != CU_STREAM_CAPTURE_STATUS_NONE);
	(void)cuStreamEndCapture(stream, &graph);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	fork_to(other, stream, event);
	EXPECT(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	REQUIRE(status_of(stream) != CU_STREAM_CAPTURE_STATUS_NONE);
	(void)cuStreamEndCapture(stream, &graph);
	/* What ends with an error has ended. */
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	fork_to(other, stream, event);
	CHECK(cuMemsetD32Async(word, 2, 1, other));
	EXPECT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	REQUIRE_EQUAL(status_of(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	EXPECT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuMemcpyDtoHAsync_v2(&host, word, 4, stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphDestroy(graph));
	for (int i = 0; i < atoi(argv[1]); i++) {
		REQUIRE_EQUAL(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
		CHECK(cuMemcpyHtoDAsync_v2(word, &host, 4, stream));
		CHECK(cuMemcpyDtoHAsync_v2(&host, word, 4, stream));
	}
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuCtxSynchronize());
	return 0;
}
