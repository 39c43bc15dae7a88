/* softgpu: grace_s=3600
 * While a context that is destroyed waits for its kernels, other threads' calls about other contexts do not. */
#include "driver.h"

#include <sched.h>

CUresult cuCtxGetApiVersion(CUcontext, unsigned int *);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned int);

static const char waits[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry waits(.param .u64 p)\n"
"{\n"
"	.reg .b64 %rd<2>;\n"
"	.reg .b32 %r<2>;\n"
"	.reg .pred %p<2>;\n"
"	ld.param.u64 %rd1, [p];\n"
"L:	ld.volatile.global.u32 %r1, [%rd1];\n"
"	setp.eq.u32 %p1, %r1, 0;\n"
"	@%p1 bra L;\n"
"	ret;\n"
"}\n";

static CUcontext ending;

static void *destroy(void *unused)
{
	(void)unused;
	CHECK(cuCtxDestroy(ending));
	return NULL;
}

/* The word is the primary context's, and the kernel another one's. */
static void start(CUdeviceptr word)
{
	void *params[] = { &word };
	CUfunction function;
	CUmodule module;

	CHECK(cuCtxCreate(&ending, 0, 0));
	CHECK(cuModuleLoadData(&module, waits));
	CHECK(cuModuleGetFunction(&function, module, "waits"));
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	CHECK(cuCtxPopCurrent(&ending));
}

int main(void)
{
	CUcontext primary, created;
	unsigned version, flags;
	volatile unsigned *word;
	pthread_t thread;
	CUdeviceptr address;
	int active;

	begin();
	CHECK(cuMemHostAlloc((void **)&word, 4, 0));
	*word = 0;
	CHECK(cuMemHostGetDevicePointer(&address, (void *)word, 0));
	start(address);
	REQUIRE(!pthread_create(&thread, NULL, destroy, NULL));
	/* Its handle goes first. */
	while (!cuCtxGetApiVersion(ending, &version))
		sched_yield();
	CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
	CHECK(cuDevicePrimaryCtxRelease(0));
	CHECK(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_YIELD));
	CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	REQUIRE(active);
	CHECK(cuCtxCreate(&created, 0, 0));
	CHECK(cuCtxDestroy(created));
	*word = 1;
	REQUIRE(!pthread_join(thread, NULL));
	return 0;
}
