/* softgpu: grace_s=0
 * A context can be reset and destroyed while its kernels would run for ever. */
#include "driver.h"

static const char endless[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry endless() { L: bra L; }\n";

static void start(void)
{
	CUfunction function;
	CUmodule module;

	CHECK(cuModuleLoadData(&module, endless));
	CHECK(cuModuleGetFunction(&function, module, "endless"));
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	CHECK(cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

int main(void)
{
	CUcontext context;
	CUdeviceptr word;

	begin();
	start();
	CHECK(cuDevicePrimaryCtxReset(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuMemAlloc(&word, 4));
	CHECK(launch_store(kernel("store"), word, 1, NULL));
	CHECK(cuCtxSynchronize());

	CHECK(cuCtxCreate(&context, 0, 0));
	start();
	CHECK(cuCtxDestroy(context));
	return 0;
}
