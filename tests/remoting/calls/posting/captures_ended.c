/* Captures that end otherwise than by cuStreamEndCapture, each way; whether a stream is captured is asked so many times
 * behind each, and once more so often where one "goes on". */
#include "../calls.h"

#include <pthread.h>

static CUcontext primary;

static CUstream capture(CUstream stream)
{
	if (!stream)
		CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	return stream;
}

static void ask(int times)
{
	CUstreamCaptureStatus status;
	CUstream stream;

	CHECK(cuCtxSetCurrent(primary));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	while (times--) {
		CHECK(cuStreamIsCapturing(stream, &status));
		REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
	}
	CHECK(cuStreamDestroy_v2(stream));
}

static void *by_thread(void *unused)
{
	CHECK(cuCtxSetCurrent(primary));
	capture(CU_STREAM_PER_THREAD);
	return unused;
}

static void green_end(void)
{
	CUdevResourceDesc description;
	CUdevResource all;
	CUcontext context;
	CUgreenCtx green;

	CHECK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(cuDevResourceGenerateDesc(&description, &all, 1));
	CHECK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	CHECK(cuCtxFromGreenCtx(&context, green));
	CHECK(cuCtxSetCurrent(context));
	capture(NULL);
	CHECK(cuCtxSetCurrent(primary));
	CHECK(cuGreenCtxDestroy(green));
}

int main(int count, char **arguments)
{
	int times = atoi(arguments[1]);
	CUcontext other;
	pthread_t thread;

	primary = begin();
	if (count > 2) {
		capture(NULL);
		ask(times);
		return 0;
	}
	CHECK(cuStreamDestroy_v2(capture(NULL)));
	ask(times);
	CHECK(cuCtxCreate_v2(&other, 0, 0));
	capture(NULL);
	CHECK(cuCtxDestroy_v2(other));
	ask(times);
	REQUIRE(pthread_create(&thread, NULL, by_thread, NULL) == 0);
	REQUIRE(pthread_join(thread, NULL) == 0);
	ask(times);
	green_end();
	ask(times);
	capture(NULL);
	capture(CU_STREAM_PER_THREAD);
	CHECK(cuDevicePrimaryCtxReset_v2(0));
	CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
	ask(times);
	return 0;
}
