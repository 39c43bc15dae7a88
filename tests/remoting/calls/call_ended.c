/* Streams of contexts that have ended: they are none any more, whatever is current and what they were captured, and who
 * destroys them spoils nothing of what comes next. */
#include "calls.h"

enum { STREAMS = 40 };

static CUstream stream;
static CUevent event;

static void make(CUdeviceptr *memory)
{
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventRecord(event, stream));
	CHECK(cuMemAlloc_v2(memory, 4));
}

static void refuse(CUdeviceptr memory)
{
	CUstreamCaptureStatus status;
	unsigned long long id;
	cuuint64_t capture;
	CUcontext context;
	unsigned flags;
	CUgraph graph;
	int priority;

	EXPECT(cuStreamIsCapturing(stream, &status), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamGetCaptureInfo(stream, &status, &capture), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamGetFlags(stream, &flags), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamGetPriority(stream, &priority), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamGetCtx(stream, &context), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamGetId(stream, &id), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuMemsetD8Async(memory, 1, 4, stream), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
}

/* All that goes on behind it goes on well. */
static void go_on(void)
{
	CUstream streams[STREAMS];

	/* Whether that is an error is not compared: it is not the next call's. */
	(void)cuEventDestroy_v2(event);
	for (int i = 0; i < STREAMS; i++)
		CHECK(cuStreamCreate(&streams[i], CU_STREAM_DEFAULT));
	CHECK(cuCtxSynchronize());
	for (int i = 0; i < STREAMS; i++)
		CHECK(cuStreamDestroy_v2(streams[i]));
	CHECK(cuCtxSynchronize());
}

static void test_reset(bool captured)
{
	CUdeviceptr memory;
	CUcontext context;

	make(&memory);
	if (captured)
		CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuDevicePrimaryCtxReset_v2(0));
	refuse(memory);
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuMemAlloc_v2(&memory, 4));
	refuse(memory);
	go_on();
}

static void test_destroyed(CUcontext other)
{
	CUcontext context;
	CUdeviceptr memory;

	CHECK(cuCtxCreate_v2(&context, 0, 0));
	make(&memory);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuCtxDestroy_v2(context));
	CHECK(cuCtxSetCurrent(other));
	CHECK(cuMemAlloc_v2(&memory, 4));
	refuse(memory);
	go_on();
}

/* A thread whose current context is gone destroys a stream of another one, whose name is free then. */
static void test_stream_elsewhere(CUcontext other)
{
	CUcontext context;
	CUdeviceptr memory;

	CHECK(cuCtxSetCurrent(other));
	make(&memory);
	CHECK(cuCtxCreate_v2(&context, 0, 0));
	CHECK(cuCtxPushCurrent_v2(context));
	CHECK(cuCtxDestroy_v2(context));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	CHECK(cuStreamDestroy_v2(stream));
	CHECK(cuCtxSetCurrent(other));
	go_on();
	CHECK(cuMemFree_v2(memory));
}

int main(void)
{
	CUcontext context = begin();

	test_reset(false);
	test_reset(true);
	test_destroyed(context);
	test_stream_elsewhere(context);
	return 0;
}
