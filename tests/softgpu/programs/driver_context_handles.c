/* A context never has the handle of one before it: libraries keep things by it. */
#include "driver.h"

#define COUNT 64

static int compare(const void *first, const void *second)
{
	return memcmp(first, second, sizeof(CUcontext));
}

int main(void)
{
	CUcontext handles[COUNT];
	CUdevice device;

	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	for (int i = 0; i < COUNT; i++) {
		CHECK(cuCtxCreate(&handles[i], 0, device));
		CHECK(cuCtxDestroy(handles[i]));
	}
	for (int i = 0; i < COUNT; i++)
		EXPECT(cuCtxSetCurrent(handles[i]), CUDA_ERROR_INVALID_CONTEXT);
	qsort(handles, COUNT, sizeof *handles, compare);
	for (int i = 1; i < COUNT; i++)
		REQUIRE(handles[i] != handles[i - 1]);
	return 0;
}
