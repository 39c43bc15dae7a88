/* Bytes and events between the second device of one server and that of another, while the first one's first
 * device is current: whose it is does not matter. */
#include "../calls.h"

enum { BYTES = 3000000, DEVICES = 3 };

int main(void)
{
	static unsigned char back[BYTES];
	CUdeviceptr memory[DEVICES];
	CUcontext contexts[DEVICES];
	CUstream streams[DEVICES];
	CUevent event;

	CHECK(cuInit(0));
	for (int i = 0; i < DEVICES; i++) {
		CHECK(cuDevicePrimaryCtxRetain(&contexts[i], i));
		CHECK(cuCtxSetCurrent(contexts[i]));
		CHECK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
		CHECK(cuMemAlloc_v2(&memory[i], BYTES));
		CHECK(cuMemsetD8_v2(memory[i], (unsigned char)(i + 1), BYTES));
		CHECK(cuCtxSynchronize());
		if (i == 1)
			CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	}
	CHECK(cuCtxSetCurrent(contexts[0]));
	CHECK(cuMemcpy(memory[2], memory[1], BYTES));
	CHECK(cuMemcpyDtoH_v2(back, memory[2], BYTES));
	for (int i = 0; i < BYTES; i++)
		REQUIRE(back[i] == 2);
	CHECK(cuMemsetD8Async(memory[2], 9, BYTES, streams[2]));
	CHECK(cuMemcpyPeerAsync(memory[1], contexts[1], memory[2], contexts[2], BYTES, streams[2]));
	CHECK(cuStreamSynchronize(streams[2]));
	CHECK(cuMemsetD8Async(memory[1], 7, 1, streams[1]));
	CHECK(cuEventRecord(event, streams[1]));
	CHECK(cuStreamWaitEvent(streams[2], event, 0));
	CHECK(cuMemcpyPeerAsync(memory[2], contexts[2], memory[1], contexts[1], BYTES, streams[2]));
	CHECK(cuMemcpyDtoHAsync_v2(back, memory[2], BYTES, streams[2]));
	CHECK(cuStreamSynchronize(streams[2]));
	REQUIRE(back[0] == 7);
	for (int i = 1; i < BYTES; i++)
		REQUIRE(back[i] == 9);
	for (int i = 0; i < DEVICES; i++) {
		CHECK(cuCtxSetCurrent(contexts[i]));
		CHECK(cuCtxSynchronize());
		CHECK(cuMemFree_v2(memory[i]));
		CHECK(cuStreamDestroy_v2(streams[i]));
	}
	printf("ok\n");
	return 0;
}
