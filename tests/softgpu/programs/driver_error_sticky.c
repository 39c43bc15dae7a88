/* A faulting kernel: its launch succeeds, the next synchronisation reports, and
 * so does every later call until the context is reset. */
#include "driver.h"

static CUresult told = CUDA_SUCCESS;

static void callback(CUstream stream, CUresult status, void *argument)
{
	(void)stream, (void)argument;
	told = status;
}

static void never(void *argument)
{
	*(bool *)argument = true;
}

int main(void)
{
	CUfunction store;
	CUdeviceptr word;
	CUmodule module;
	CUcontext context, again;
	struct gate gate;
	bool ran = false;
	unsigned seen;

	context = begin();
	store = kernel("store");
	CHECK(cuMemAlloc(&word, 4));
	gate_close(&gate, NULL);
	CHECK(launch_store(store, 16, 1, NULL));
	CHECK(launch_store(store, word, 1, NULL));
	CHECK(cuLaunchHostFunc(NULL, never, &ran));
	CHECK(cuStreamAddCallback(NULL, callback, NULL, 0));
	gate_open(&gate);
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	REQUIRE_EQUAL(told, CUDA_ERROR_ILLEGAL_ADDRESS);
	REQUIRE(!ran);
	EXPECT(cuMemAlloc(&word, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(launch_store(store, word, 1, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuStreamQuery(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemcpyDtoH(&seen, word, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(cuCtxGetCurrent(&again));

	CHECK(cuDevicePrimaryCtxReset(0));
	EXPECT(cuMemAlloc(&word, 4), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	CHECK(cuDevicePrimaryCtxRetain(&again, 0));
	REQUIRE(again == context);
	EXPECT(launch_store(store, word, 1, NULL), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuMemAlloc(&word, 4));
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&store, module, "store"));
	/* What was never called keeps nobody waiting, however much comes behind. */
	for (unsigned i = 0; i < 1000; i++)
		CHECK(launch_store(store, word, 9, NULL));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 9);
	return 0;
}
