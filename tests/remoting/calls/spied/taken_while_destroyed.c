/* One thread allocates what a context had which another has just destroyed, before the other hears that
 * it is.  Only one buffer of that size fits the GPU. */
#include "../calls.h"

#include <pthread.h>
#include <sched.h>

static bool noted(const char *call)
{
	FILE *log = fopen(getenv("SPY_DRIVER_LOG"), "r");
	bool found = false;
	char line[64];

	while (log && fgets(line, sizeof line, log))
		found = found || strncmp(line, call, strlen(call)) == 0;
	if (log)
		fclose(log);
	return found;
}

static void *destroy(void *context)
{
	CHECK(cuCtxDestroy_v2(context));
	return NULL;
}

int main(void)
{
	CUcontext primary, made;
	CUdeviceptr first, second, small;
	size_t available, total, bytes;
	pthread_t thread;

	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
	CHECK(cuCtxCreate_v2(&made, 0, 0));
	CHECK(cuMemGetInfo_v2(&available, &total));
	bytes = available / 4 * 3;
	CHECK(cuMemAlloc_v2(&first, bytes));
	CHECK(cuCtxSetCurrent(primary));
	REQUIRE(pthread_create(&thread, NULL, destroy, made) == 0);
	while (!noted("destroy"))
		sched_yield();
	CUresult taken = cuMemAlloc_v2(&second, bytes);
	CHECK(cuMemAlloc_v2(&small, 256));
	REQUIRE(pthread_join(thread, NULL) == 0);
	REQUIRE_EQUAL(taken, CUDA_SUCCESS);
	REQUIRE_EQUAL(second, first);
	CHECK(cuMemsetD8_v2(second, 1, 4096));
	CHECK(cuCtxSynchronize());
	printf("ok\n");
	return 0;
}
