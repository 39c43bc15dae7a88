/* Events that are not over, whatever was waited for: a stream of the same name in a green context; and those of a context
 * that has ended. */
#include "calls.h"

#include <semaphore.h>

static sem_t held;

static void hold(void *unused)
{
	(void)unused;
	sem_wait(&held);
}

static CUgreenCtx green_half(CUcontext *context)
{
	CUdevResourceDesc description;
	CUdevResource all, halves[2];
	unsigned count = 2;
	CUgreenCtx green;

	CHECK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(cuDevSmResourceSplitByCount(halves, &count, &all, NULL, 0, 8));
	CHECK(cuDevResourceGenerateDesc(&description, halves, 1));
	CHECK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	CHECK(cuCtxFromGreenCtx(context, green));
	return green;
}

/* The default stream of a green context is another one than the primary context's. */
static void test_default_streams(CUcontext primary, CUcontext green)
{
	CUevent event;

	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuLaunchHostFunc(CU_STREAM_LEGACY, hold, NULL));
	CHECK(cuEventRecord(event, CU_STREAM_LEGACY));
	CHECK(cuCtxSetCurrent(green));
	CHECK(cuStreamSynchronize(CU_STREAM_LEGACY));
	EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	sem_post(&held);
	CHECK(cuEventSynchronize(event));
	CHECK(cuEventQuery(event));
	CHECK(cuCtxSetCurrent(primary));
	CHECK(cuEventDestroy_v2(event));
}

/* What ended with its context is no event any more, whatever was known of it. */
static void test_reset(void)
{
	CUevent event;

	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventRecord(event, NULL));
	CHECK(cuCtxSynchronize());
	CHECK(cuEventQuery(event));
	CHECK(cuDevicePrimaryCtxReset_v2(0));
	EXPECT(cuEventQuery(event), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

int main(void)
{
	CUcontext primary = begin(), context;
	CUgreenCtx green;

	REQUIRE(sem_init(&held, 0, 0) == 0);
	green = green_half(&context);
	test_default_streams(primary, context);
	CHECK(cuGreenCtxDestroy(green));
	test_reset();
	return 0;
}
