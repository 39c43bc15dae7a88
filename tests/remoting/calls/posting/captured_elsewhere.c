/* While a stream is captured that the legacy one waits for, work in the legacy one ends the capture: the call says so, and
 * what it was to do is not done. */
#include "../calls.h"

static int called;

static void count(void *argument)
{
	(void)argument;
	called++;
}

static void count_back(CUstream stream, CUresult status, void *argument)
{
	(void)stream, (void)status;
	count(argument);
}

static CUstream stream;
static CUdeviceptr memory;

static CUresult call(int which)
{
	switch (which) {
	case 0:
		return cuLaunchHostFunc(NULL, count, NULL);
	case 1:
		return cuStreamAddCallback(NULL, count_back, NULL, 0);
	default:
		return cuMemFreeAsync(memory, NULL);
	}
}

int main(void)
{
	CUstreamCaptureStatus status;
	CUgraph graph;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
	CHECK(cuMemAllocAsync(&memory, 4096, stream));
	CHECK(cuStreamSynchronize(stream));
	for (int which = 0; which < 3; which++) {
		CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
		EXPECT(call(which), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
		CHECK(cuStreamIsCapturing(stream, &status));
		REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
		EXPECT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		CHECK(cuCtxSynchronize());
		REQUIRE_EQUAL(called, 0);
	}
	/* Nothing is left behind: each works, and so does what comes then. */
	for (int which = 0; which < 3; which++)
		CHECK(call(which));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(called, 2);
	return 0;
}
