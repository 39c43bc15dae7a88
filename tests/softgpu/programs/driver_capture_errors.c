/* Every error of a capture, from 900 to 908, whether it invalidates, and that streams are usable after. */
#include "graph.h"

CUresult cuCtxRecordEvent(CUcontext, CUevent);
CUresult cuCtxWaitEvent(CUcontext, CUevent);

static CUstream blocking, stream, other;
static CUdeviceptr word;
static CUevent event;

static void begin_capture(CUstream where, CUstreamCaptureMode mode)
{
	CHECK(cuStreamBeginCapture(where, mode));
}

static void expect_invalidated(CUstream where)
{
	CUstreamCaptureStatus status;
	CUgraph graph = (CUgraph)1;

	CHECK(cuStreamIsCapturing(where, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	EXPECT(launch_store(kernel("store"), word, 1, where), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT(cuStreamEndCapture(where, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	REQUIRE(!graph);
	CHECK(launch_store(kernel("store"), word, 1, where));
	CHECK(cuStreamSynchronize(where));
}

static void expect_valid(CUstream where)
{
	CHECK(cuGraphDestroy(end_capture(where)));
}

static void ignore(CUstream where, CUresult result, void *argument)
{
	(void)where, (void)result, (void)argument;
}

/* 900: calls that can't be captured, and calls that captures don't see. */
static void test_unsupported(void)
{
	const CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL;
	CUstreamCaptureMode mode;
	CUdeviceptr memory;

	EXPECT(cuStreamBeginCapture(NULL, global), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EXPECT(cuStreamBeginCapture(stream, 3), CUDA_ERROR_INVALID_VALUE);
	begin_capture(stream, global);
	EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated(stream);
	begin_capture(stream, global);
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated(stream);
	begin_capture(stream, global);
	EXPECT(cuStreamAddCallback(stream, ignore, NULL, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated(stream);
	begin_capture(stream, global);
	EXPECT(cuMemAlloc(&memory, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated(stream);
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated(stream);

	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(cuMemAlloc(&memory, 4));
	CHECK(cuMemFree(memory));
	expect_valid(stream);
	begin_capture(stream, global);
	mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CHECK(cuThreadExchangeStreamCaptureMode(&mode));
	REQUIRE_EQUAL(mode, global);
	CHECK(cuMemAlloc(&memory, 4));
	CHECK(cuThreadExchangeStreamCaptureMode(&mode));
	expect_valid(stream);
	CHECK(cuMemFree(memory));
}

static CUresult other_thread_result;
static CUresult (*other_thread_call)(void);

static void *in_thread(void *unused)
{
	CUcontext context;

	(void)unused;
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
	other_thread_result = other_thread_call();
	CHECK(cuDevicePrimaryCtxRelease(0));
	return NULL;
}

static CUresult elsewhere(CUresult (*call)(void))
{
	pthread_t thread;

	other_thread_call = call;
	REQUIRE(!pthread_create(&thread, NULL, in_thread, NULL));
	pthread_join(thread, NULL);
	return other_thread_result;
}

static CUresult allocate(void)
{
	CUdeviceptr memory;
	CUresult result = cuMemAlloc(&memory, 4);

	return result ? result : cuMemFree(memory);
}

static CUresult end_stream(void)
{
	CUgraph graph;

	return cuStreamEndCapture(stream, &graph);
}

static void test_threads(void)
{
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
	EXPECT(elsewhere(allocate), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated(stream);
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	EXPECT(elsewhere(allocate), CUDA_SUCCESS);
	EXPECT(elsewhere(end_stream), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	expect_valid(stream);
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	EXPECT(elsewhere(end_stream), CUDA_SUCCESS);
}

/* 902, 903, 905: captures and what is outside of them don't mix. */
static void test_boundaries(void)
{
	CUgraph graph;
	CUevent fresh;

	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	begin_capture(other, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(cuEventRecord(event, stream));
	EXPECT(cuStreamWaitEvent(other, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
	expect_invalidated(stream);
	expect_invalidated(other);

	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(cuEventRecord(event, stream));
	CHECK(cuStreamWaitEvent(other, event, 0));
	EXPECT(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	expect_invalidated(stream);

	CHECK(cuEventRecord(event, other));
	CHECK(cuEventCreate(&fresh, 0));
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(cuStreamWaitEvent(stream, fresh, 0));
	EXPECT(cuStreamWaitEvent(stream, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	expect_invalidated(stream);
	CHECK(cuEventDestroy(fresh));
}

/* 906: the legacy stream would wait for the capture. */
static void test_legacy(void)
{
	CUstreamCaptureStatus status;

	begin_capture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
	EXPECT(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	CHECK(cuStreamIsCapturing(blocking, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	EXPECT(launch_store(kernel("store"), word, 1, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	expect_invalidated(blocking);
	begin_capture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
	EXPECT(cuMemcpyDtoD(word, word, 4), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	expect_invalidated(blocking);

	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(launch_store(kernel("store"), word, 1, NULL));
	CHECK(cuStreamSynchronize(NULL));
	expect_valid(stream);
}

/* 907: the host can't wait for what does not run. */
static void test_captured_event(void)
{
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(cuEventRecord(event, stream));
	EXPECT(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
	expect_invalidated(stream);
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(cuEventRecord(event, stream));
	expect_valid(stream);
	EXPECT(cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT);
	EXPECT(cuStreamWaitEvent(other, event, 0), CUDA_ERROR_CAPTURED_EVENT);
	CHECK(cuEventRecord(event, stream));
	CHECK(cuEventSynchronize(event));
}

/* 900: events of a whole context, of which a stream captures, and those of a capture that a context is to wait for. */
static void test_context(CUcontext context)
{
	CUcontext elsewhere;
	CUevent all;

	CHECK(cuEventCreate(&all, CU_EVENT_DISABLE_TIMING));
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	EXPECT(cuCtxRecordEvent(context, all), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated(stream);
	CHECK(cuCtxRecordEvent(context, all));
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	EXPECT(cuCtxWaitEvent(context, all), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated(stream);
	CHECK(cuCtxWaitEvent(context, all));
	CHECK(cuEventDestroy(all));
	CHECK(cuCtxCreate(&elsewhere, 0, 0));
	CHECK(cuCtxPopCurrent(NULL));
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(cuEventRecord(event, stream));
	EXPECT(cuCtxWaitEvent(elsewhere, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated(stream);
	CHECK(cuCtxDestroy(elsewhere));
}

int main(void)
{
	CUcontext context = begin();

	word = new_word(0);
	kernel("store");
	CHECK(cuStreamCreate(&blocking, 0));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	test_unsupported();
	test_threads();
	test_boundaries();
	test_legacy();
	test_captured_event();
	test_context(context);
	/* A context may go while one of its streams captures. */
	begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(cuEventRecord(event, stream));
	CHECK(cuDevicePrimaryCtxReset(0));
	return 0;
}
