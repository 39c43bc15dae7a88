/* A destroyed stream still finishes its work, and its handle is dead. */
#include "driver.h"

static void note(void *argument)
{
	*(bool *)argument = true;
}

int main(void)
{
	struct gate gate;
	CUstream stream;
	CUevent event;
	bool ran = false;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	gate_close(&gate, stream);
	CHECK(cuLaunchHostFunc(stream, note, &ran));
	CHECK(cuEventRecord(event, stream));
	CHECK(cuStreamDestroy(stream));
	EXPECT(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamDestroy(stream), CUDA_ERROR_INVALID_HANDLE);
	gate_open(&gate);
	CHECK(cuEventSynchronize(event));
	REQUIRE(ran);
	return 0;
}
