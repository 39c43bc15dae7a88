/* Memory of the host that a driver gives is its own node's: all that gives it is refused, and its
 * granularity is the device's. */
#include "../calls.h"

static int attribute(CUdevice_attribute attribute)
{
	int value = 77;

	CHECK(cuDeviceGetAttribute(&value, attribute, 0));
	return value;
}

int main(void)
{
	static const CUmemLocationType types[] = {
		CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
	};
	CUmemAllocationProp memory = { .type = CU_MEM_ALLOCATION_TYPE_PINNED };
	CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED };
	CUmemGenericAllocationHandle handle;
	CUmemoryPool pool;
	size_t granularity;

	begin();
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_NUMA_CONFIG), 0);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_NUMA_ID), -1);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID), -1);
	for (int i = CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
	     i <= CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED; i++)
		REQUIRE_EQUAL(attribute((CUdevice_attribute)i), 0);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		memory.location.type = properties.location.type = types[i];
		EXPECT(cuMemCreate(&handle, 1 << 21, &memory, 0), CUDA_ERROR_NOT_SUPPORTED);
		CHECK(cuMemGetAllocationGranularity(&granularity, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
		REQUIRE_EQUAL(granularity, 4096);
		EXPECT(cuMemPoolCreate(&pool, &properties), CUDA_ERROR_NOT_SUPPORTED);
	}
	memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CHECK(cuMemGetAllocationGranularity(&granularity, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	REQUIRE_EQUAL(granularity, 4096);
	puts("ok");
	return 0;
}
