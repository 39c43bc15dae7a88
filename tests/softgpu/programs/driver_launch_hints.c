/* Attributes of a launch that only advise: the kernel runs. */
#include "driver.h"

int main(void)
{
	CUlaunchAttribute hints[] = {
		{ .id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN },
		{ .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION },
		{ .id = CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING },
	};
	CUlaunchConfig config = {
		.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
		.blockDimZ = 1, .attrs = hints, .numAttrs = sizeof hints / sizeof *hints,
	};
	unsigned value = 3, seen = 0;
	CUdeviceptr word;
	void *params[] = { &word, &value };

	begin();
	CHECK(cuMemAlloc(&word, 4));
	CHECK(cuLaunchKernelEx(&config, kernel("store"), params, NULL));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 3);
	return 0;
}
