/* softgpu: grace_s=3600
 * While a context that is destroyed waits for its kernels, other threads' calls about other contexts do not. */
#include "gate.h"

CUresult cuCtxGetApiVersion(CUcontext, unsigned int *);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned int);

static CUcontext ending;

static void *destroy(void *unused)
{
	(void)unused;
	CHECK(cuCtxDestroy(ending));
	return NULL;
}

int main(void)
{
	CUcontext primary, created;
	unsigned version, flags;
	pthread_t thread;
	int active;

	begin();
	gate_make();	/* the primary context's; who waits is another one's */
	CHECK(cuCtxCreate(&ending, 0, 0));
	gate_await(gate_kernel(), NULL);
	CHECK(cuCtxPopCurrent(&ending));
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
	*gate = 1;
	REQUIRE(!pthread_join(thread, NULL));
	return 0;
}
