/* The log's callback calls CUDA, also when it is told that the server is lost: then it gets that error, and the program goes on. */
#include "../calls.h"

#include <sched.h>
#include <stdatomic.h>

static atomic_int told;

static void logged(void *unused, CUlogLevel level, char *text, size_t bytes)
{
	size_t available, total;

	(void)unused, (void)level, (void)text, (void)bytes;
	EXPECT(cuMemGetInfo_v2(&available, &total), CUDA_ERROR_DEVICE_UNAVAILABLE);
	told++;
}

int main(void)
{
	CUlogsCallbackHandle handle;
	CUdeviceptr memory;
	CUresult result;

	(void)begin();
	CHECK(cuLogsRegisterCallback(logged, NULL, &handle));
	puts("waiting");
	fflush(stdout);
	do {
		result = cuMemAlloc_v2(&memory, 4096);
		if (result == CUDA_SUCCESS)
			result = cuMemFree_v2(memory);
	} while (result == CUDA_SUCCESS);
	REQUIRE_EQUAL(result, CUDA_ERROR_DEVICE_UNAVAILABLE);
	/* It may be another thread that meets the end first. */
	while (!told)
		sched_yield();
	REQUIRE_EQUAL(told, 1);
	return 3;
}
