/* A kernel that uses a mapping before cuMemSetAccess gets an error, not a crash. */
#include "driver.h"

int main(void)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	CUmemGenericAllocationHandle memory;
	CUdeviceptr base;
	size_t granule;

	begin();
	CHECK(cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	CHECK(cuMemCreate(&memory, granule, &properties, 0));
	CHECK(cuMemAddressReserve(&base, granule, 0, 0, 0));
	CHECK(cuMemMap(base, granule, 0, memory, 0));
	CHECK(launch_store(kernel("store"), base, 1, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}
