/* Streams of a context that is not current and has an error: the very call reports it, and the current context
 * has none. */
#include "calls.h"

static char host[1 << 16];

static void never(void *argument)
{
	(void)argument;
	abort();
}

static void called_back(CUstream stream, CUresult status, void *argument)
{
	(void)stream;
	(void)status;
	(void)argument;
}

static void fault(CUfunction store, CUstream stream)
{
	CUdeviceptr nowhere = 16;
	unsigned value = 1;
	void *parameters[] = { &nowhere, &value };

	CHECK(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
	EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* `here` is current afterwards, `there` has failed. */
static void check(CUcontext here, CUcontext there)
{
	CUdeviceptr memory, ours, asked;
	unsigned value = 1, flags;
	void *parameters[] = { &memory, &value };
	CUevent event, our_event;
	CUstream stream, our_stream;
	CUfunction store;
	CUmodule module;
	void *pinned;

	CHECK(cuCtxSetCurrent(there));
	CHECK(cuModuleLoadData(&module, code));
	CHECK(cuModuleGetFunction(&store, module, "store"));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DEFAULT));
	CHECK(cuMemAlloc_v2(&memory, sizeof host));
	fault(store, stream);

	CHECK(cuCtxSetCurrent(here));
	CHECK(cuStreamCreate(&our_stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&our_event, CU_EVENT_DEFAULT));
	CHECK(cuMemAlloc_v2(&ours, sizeof host));
	CHECK(cuMemHostAlloc(&pinned, sizeof host, 0));
	CHECK(cuEventRecord(our_event, our_stream));

	EXPECT(cuStreamQuery(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemsetD32Async(memory, 1, 4, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemsetD2D8Async(memory, 64, 1, 4, 4, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemcpyHtoDAsync_v2(memory, host, 8, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemcpyHtoDAsync_v2(memory, host, sizeof host, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemcpyHtoDAsync_v2(memory, pinned, sizeof host, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemcpyDtoHAsync_v2(pinned, memory, sizeof host, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemcpyDtoDAsync_v2(memory + 64, memory, 64, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemcpyAsync(memory + 64, memory, 64, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuEventRecord(event, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuStreamWaitEvent(stream, our_event, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuLaunchHostFunc(stream, never, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuStreamAddCallback(stream, called_back, NULL, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemAllocAsync(&asked, 64, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemFreeAsync(memory, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	/* What does nothing in it may be asked. */
	CHECK(cuStreamGetFlags(stream, &flags));
	REQUIRE_EQUAL(flags, CU_STREAM_NON_BLOCKING);

	CHECK(cuMemsetD32Async(ours, 7, 4, our_stream));
	CHECK(cuStreamSynchronize(our_stream));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(word_at(ours), 7);
	CHECK(cuStreamDestroy_v2(our_stream));
	CHECK(cuEventDestroy_v2(our_event));
	CHECK(cuMemFree_v2(ours));
	CHECK(cuMemFreeHost(pinned));
}

int main(void)
{
	CUcontext here = begin(), there;

	CHECK(cuCtxCreate_v2(&there, 0, 0));
	check(here, there);
	CHECK(cuDevicePrimaryCtxRetain(&there, 1));
	check(here, there);
	printf("ok\n");
	return 0;
}
