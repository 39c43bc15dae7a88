/* Callbacks are called after an error, too, and told of it; host functions are not called then. */
#include "calls.h"

static void called(CUstream stream, CUresult status, void *told)
{
	(void)stream;
	*(CUresult *)told = status;
}

static void counted(void *count)
{
	++*(int *)count;
}

/* Neither callbacks nor records for others belong where they are refused. */
static void refused(CUstream stream)
{
	CUstreamCaptureStatus status;
	CUresult told = CUDA_SUCCESS;
	CUgraph graph;
	CUevent event;

	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	EXPECT(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL),
	       CUDA_ERROR_INVALID_VALUE);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(cuStreamAddCallback(stream, called, &told, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK(cuStreamIsCapturing(stream, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	EXPECT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK(cuEventDestroy_v2(event));
}

int main(void)
{
	CUdeviceptr nowhere = 16;
	unsigned value = 1;
	void *parameters[] = { &nowhere, &value };
	CUresult told = CUDA_ERROR_UNKNOWN;
	CUstream stream;
	int calls = 0;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	refused(stream);
	CHECK(cuStreamAddCallback(stream, called, &told, 0));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(told, CUDA_SUCCESS);
	{
		CUdeviceptr gate = words(1, 0);
		CUstream other;

		/* All of it is queued before the error happens. */
		CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
		CHECK(cuStreamWaitValue32_v2(stream, gate, 1, CU_STREAM_WAIT_VALUE_EQ));
		CHECK(cuLaunchKernel(store_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
		CHECK(cuLaunchHostFunc(stream, counted, &calls));
		CHECK(cuStreamAddCallback(stream, called, &told, 0));
		CHECK(cuStreamWriteValue32_v2(other, gate, 1, 0));
	}
	EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	REQUIRE_EQUAL(told, CUDA_ERROR_ILLEGAL_ADDRESS);
	REQUIRE_EQUAL(calls, 0);
	return 0;
}
