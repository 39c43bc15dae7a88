/* softgpu: mem=16MiB
 * Virtual memory management: reserve, create, map, open, use, and back. */
#include "driver.h"

#define MIB (1ul << 20)

int main(void)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	CUmemAccessDesc open = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemAllocationProp told;
	CUmemGenericAllocationHandle first, second, again, none;
	unsigned long long access = 7;
	size_t granule = 0, available, total;
	CUdeviceptr base;
	unsigned value[2] = { 0, 0 };

	begin();
	CHECK(cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	REQUIRE(granule == 2 * MIB);
	EXPECT(cuMemCreate(&first, granule + 1, &properties, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemCreate(&first, granule, &properties, 0));
	CHECK(cuMemCreate(&second, granule, &properties, 0));
	CHECK(cuMemGetInfo(&available, &total));
	REQUIRE(total - available == 2 * granule);
	EXPECT(cuMemCreate(&none, 14 * MIB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cuMemGetAllocationPropertiesFromHandle(&told, first));
	REQUIRE(told.type == properties.type && told.location.id == 0);

	/* Addresses alone hold nothing. */
	CHECK(cuMemAddressReserve(&base, 3 * granule, 0, 0, 0));
	REQUIRE(base % granule == 0);
	EXPECT(cuMemsetD32(base, 1, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemMap(base + 3 * granule, granule, 0, first, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemMap(base, granule, 0, first, 0));
	EXPECT(cuMemMap(base, granule, 0, second, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemMap(base + granule, granule, 0, second, 0));
	/* Mapped, but nobody may use it yet. */
	EXPECT(cuMemsetD32(base, 1, 1), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemGetAccess(&access, &open.location, base));
	REQUIRE(access == 0);
	CHECK(cuMemSetAccess(base, 2 * granule, &open, 1));
	CHECK(cuMemGetAccess(&access, &open.location, base));
	REQUIRE(access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	EXPECT(cuMemSetAccess(base, 3 * granule, &open, 1), CUDA_ERROR_INVALID_VALUE);

	/* One range out of two pieces, for copies and for kernels. */
	CHECK(cuMemsetD32(base + granule - 4, 5, 2));
	CHECK(launch_store(kernel("store"), base + granule, 6, NULL));
	CHECK(cuMemcpyDtoH(value, base + granule - 4, 8));
	REQUIRE(value[0] == 5 && value[1] == 6);
	EXPECT(cuMemcpyDtoH(value, base + 2 * granule - 4, 8), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFree(base), CUDA_ERROR_INVALID_VALUE);

	/* A mapping keeps memory whose handle was released, and gives it a handle again. */
	CHECK(cuMemRelease(second));
	EXPECT(cuMemRelease(second), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemRetainAllocationHandle(&again, (void *)(base + granule + 12)));
	EXPECT(cuMemAddressFree(base, 3 * granule), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemUnmap(base, 2 * granule));
	EXPECT(cuMemUnmap(base, 2 * granule), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemsetD32(base, 1, 1), CUDA_ERROR_INVALID_VALUE);

	/* Memory keeps what it holds, wherever it is mapped. */
	CHECK(cuMemMap(base + 2 * granule, granule, 0, again, 0));
	CHECK(cuMemSetAccess(base + 2 * granule, granule, &open, 1));
	CHECK(cuMemcpyDtoH(value, base + 2 * granule, 4));
	REQUIRE(value[0] == 6);
	CHECK(cuMemUnmap(base + 2 * granule, granule));
	CHECK(cuMemRelease(again));
	CHECK(cuMemRelease(first));
	CHECK(cuMemAddressFree(base, 3 * granule));
	EXPECT(cuMemAddressFree(base, 3 * granule), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemGetInfo(&available, &total));
	REQUIRE(total - available == 2 * MIB);	/* what the module took */
	return 0;
}
