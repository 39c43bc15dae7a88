/* softgpu: count=2
 *
 * A host function behind a kernel that fails is never called.  Neither who knows
 * nothing of that, as nothing was asked of the device since, nor what the other
 * device is given waits for it, however much that is. */
#include "driver.h"

static void never(void *argument)
{
	*(bool *)argument = true;
}

int main(void)
{
	CUfunction store, elsewhere;
	CUcontext context, other;
	CUdeviceptr word;
	CUmodule module;
	struct gate gate;
	bool ran = false;
	unsigned seen;

	context = begin();
	store = kernel("store");
	CHECK(cuDevicePrimaryCtxRetain(&other, 1));
	CHECK(cuCtxSetCurrent(other));
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleGetFunction(&elsewhere, module, "store"));
	CHECK(cuMemAlloc(&word, 4));

	CHECK(cuCtxSetCurrent(context));
	gate_close(&gate, NULL);
	CHECK(launch_store(store, 16, 1, NULL));
	CHECK(cuLaunchHostFunc(NULL, never, &ran));
	gate_open(&gate);
	CHECK(cuCtxSetCurrent(other));
	for (unsigned i = 0; i < 1000; i++)
		CHECK(launch_store(elsewhere, word, i, NULL));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 999);

	CHECK(cuCtxSetCurrent(context));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	REQUIRE(!ran);
	return 0;
}
