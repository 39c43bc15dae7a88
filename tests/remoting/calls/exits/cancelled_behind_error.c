/* A thread that is cancelled while it waits for a callback which its stream's error is told by: a CUDA call is no
 * cancellation point, and takes nothing with it that others need. */
#include "../calls.h"

#include <pthread.h>
#include <stdatomic.h>

#define TIMES 10

static _Atomic int inside, go;
static CUcontext context;
static CUstream stream;

static void blocked(CUstream of, CUresult status, void *told)
{
	(void)of;
	*(CUresult *)told = status;
	inside = 1;
	while (!go)
		;
}

/* The driver refuses the callback, as its context has failed, which this process has not heard of. */
static void *wait_for_stream(void *status)
{
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuStreamAddCallback(stream, blocked, status, 0));
	EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	return NULL;
}

static void rounds(CUcontext own)
{
	size_t available;

	CHECK(cuCtxPushCurrent_v2(own));
	for (int i = 0; i < 50; i++)
		CHECK(cuMemGetInfo_v2(&available, NULL));
	CHECK(cuCtxPopCurrent_v2(NULL));
}

static void cancelled(CUcontext own)
{
	CUdeviceptr nowhere = 16;
	CUresult status = CUDA_SUCCESS;
	unsigned value = 1;
	void *parameters[] = { &nowhere, &value };
	CUfunction store;
	pthread_t thread;
	CUmodule module;

	inside = go = 0;
	CHECK(cuCtxCreate_v2(&context, 0, 0));
	CHECK(cuModuleLoadData(&module, code));
	CHECK(cuModuleGetFunction(&store, module, "store"));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
	rounds(own);
	REQUIRE(pthread_create(&thread, NULL, wait_for_stream, &status) == 0);
	while (!inside)
		;
	REQUIRE(pthread_cancel(thread) == 0);
	/* It waits for the callback by then. */
	rounds(own);
	go = 1;
	REQUIRE(pthread_join(thread, NULL) == 0);
	REQUIRE_EQUAL(status, CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(cuCtxDestroy_v2(context));
}

int main(void)
{
	CUcontext own = begin();

	for (int i = 0; i < TIMES; i++)
		cancelled(own);
	puts("ok");
	return 0;
}
