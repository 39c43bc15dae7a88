/* softgpu: mem=64MiB
 * Memory ends where the device's does, and comes back when it is freed. */
#include "driver.h"

#define MIB (1ul << 20)

int main(void)
{
	CUdeviceptr first, second, third;
	size_t available, total;

	begin();
	CHECK(cuDeviceTotalMem(&total, 0));
	REQUIRE_EQUAL(total, 64 * MIB);
	CHECK(cuMemGetInfo(&available, &total));
	REQUIRE_EQUAL(available, 64 * MIB);
	EXPECT(cuMemAlloc(&first, 65 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT(cuMemAlloc(&first, (size_t)-1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cuMemAlloc(&first, 32 * MIB));
	CHECK(cuMemAlloc(&second, 32 * MIB));
	EXPECT(cuMemAlloc(&third, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cuMemFree(first));
	CHECK(cuMemAlloc(&third, 1));
	CHECK(cuMemGetInfo(&available, &total));
	REQUIRE_EQUAL(available, 30 * MIB);
	CHECK(cuMemFree(third));
	CHECK(cuMemFree(second));
	CHECK(cuMemAlloc(&first, 64 * MIB));
	return 0;
}
