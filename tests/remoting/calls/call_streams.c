/* Streams and events: what they are asked, callbacks, time between events. */
#include "calls.h"

static void called(CUstream stream, CUresult status, void *argument)
{
	(void)stream;
	*(int *)argument = 1 + (int)status;
}

int main(void)
{
	CUevent first, second;
	CUcontext context, found;
	CUgreenCtx green = (CUgreenCtx)1;
	int least, greatest, priority, done = 0;
	unsigned long long id, other;
	unsigned flags;
	float milliseconds = -1;
	CUdevice device = -1;
	CUstream stream, plain;

	context = begin();
	CHECK(cuCtxGetStreamPriorityRange(&least, &greatest));
	CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest));
	CHECK(cuStreamCreate(&plain, CU_STREAM_DEFAULT));
	CHECK(cuStreamGetPriority(stream, &priority));
	REQUIRE_EQUAL(priority, greatest);
	CHECK(cuStreamGetFlags(stream, &flags));
	REQUIRE_EQUAL(flags, CU_STREAM_NON_BLOCKING);
	CHECK(cuStreamGetId(stream, &id));
	CHECK(cuStreamGetId(plain, &other));
	REQUIRE(id != other);
	CHECK(cuStreamGetCtx(stream, &found));
	REQUIRE(found == context);
	CHECK(cuStreamGetCtx_v2(stream, &found, &green));
	REQUIRE(found == context && !green);
	CHECK(cuStreamGetDevice(stream, &device));
	REQUIRE_EQUAL(device, 0);

	CHECK(cuEventCreate(&first, CU_EVENT_DEFAULT));
	CHECK(cuEventCreate(&second, CU_EVENT_DEFAULT));
	CHECK(cuEventRecord(first, stream));
	CHECK(cuStreamAddCallback(stream, called, &done, 0));
	CHECK(cuEventRecordWithFlags(second, stream, CU_EVENT_RECORD_DEFAULT));
	CHECK(cuStreamWaitEvent(plain, second, 0));
	CHECK(cuStreamSynchronize(plain));
	REQUIRE_EQUAL(done, 1);
	CHECK(cuStreamQuery(stream));
	CHECK(cuEventSynchronize(second));
	CHECK(cuEventQuery(second));
	CHECK(cuEventElapsedTime(&milliseconds, first, second));
	REQUIRE(milliseconds >= 0);
	milliseconds = -1;
	CHECK(cuEventElapsedTime_v2(&milliseconds, first, second));
	REQUIRE(milliseconds >= 0);
	CHECK(cuEventDestroy_v2(first));
	EXPECT(cuEventQuery(first), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuStreamDestroy_v2(plain));
	return 0;
}
