/* What pointers point into. */
#include "driver.h"

static unsigned type_of(CUdeviceptr address)
{
	unsigned type;

	CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
	return type;
}

static unsigned long long handle_types_of(CUdeviceptr address)
{
	unsigned long long types = ~0ull;

	CHECK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address));
	return types;
}

/* How memory that is mapped can be given to another process. */
static void check_mapped(CUmemAllocationHandleType types)
{
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = types,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
	};
	CUmemGenericAllocationHandle memory;
	CUdeviceptr address;
	size_t granule;

	CHECK(cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	CHECK(cuMemCreate(&memory, granule, &properties, 0));
	CHECK(cuMemAddressReserve(&address, granule, 0, 0, 0));
	CHECK(cuMemMap(address, granule, 0, memory, 0));
	REQUIRE_EQUAL(handle_types_of(address), types);
	CHECK(cuMemUnmap(address, granule));
	CHECK(cuMemAddressFree(address, granule));
	CHECK(cuMemRelease(memory));
}

static void check_pooled(CUmemAllocationHandleType types)
{
	const CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = types,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
	};
	CUdeviceptr address;
	CUmemoryPool pool;

	CHECK(cuMemPoolCreate(&pool, &properties));
	CHECK(cuMemAllocFromPoolAsync(&address, 100, pool, NULL));
	REQUIRE_EQUAL(handle_types_of(address), types);
	CHECK(cuMemFreeAsync(address, NULL));
	CHECK(cuMemPoolDestroy(pool));
}

int main(void)
{
	CUpointer_attribute list[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
				       CU_POINTER_ATTRIBUTE_HOST_POINTER };
	unsigned type, managed;
	int ordinal, local;
	void *host, *seen;
	void *out[] = { &type, &ordinal, &seen };
	CUdeviceptr device, unified, mapped;
	CUcontext context, owner;

	context = begin();
	CHECK(cuMemAlloc(&device, 100));
	CHECK(cuMemAllocManaged(&unified, 100, CU_MEM_ATTACH_GLOBAL));
	CHECK(cuMemHostAlloc(&host, 100, 0));
	REQUIRE_EQUAL(type_of(device + 99), CU_MEMORYTYPE_DEVICE);
	REQUIRE_EQUAL(type_of(unified), CU_MEMORYTYPE_DEVICE);
	REQUIRE_EQUAL(type_of((CUdeviceptr)(uintptr_t)host), CU_MEMORYTYPE_HOST);
	CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, unified));
	REQUIRE_EQUAL(managed, 1);
	for (unsigned set = 1; set + 1; set--) {
		CHECK(cuPointerSetAttribute(&set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, unified));
		CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, unified));
		REQUIRE_EQUAL(type, set);
	}
	CHECK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, device));
	REQUIRE(owner == context);
	CHECK(cuMemHostGetDevicePointer(&mapped, host, 0));
	REQUIRE(mapped == (CUdeviceptr)(uintptr_t)host);
	EXPECT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				     (CUdeviceptr)(uintptr_t)&local), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuPointerGetAttributes(3, list, out, (CUdeviceptr)(uintptr_t)&local));
	REQUIRE_EQUAL(type, 0);
	REQUIRE_EQUAL(ordinal, -2);
	CHECK(cuPointerGetAttributes(3, list, out, device));
	REQUIRE_EQUAL(type, CU_MEMORYTYPE_DEVICE);
	REQUIRE_EQUAL(ordinal, 0);
	REQUIRE(!seen);
	REQUIRE_EQUAL(handle_types_of(device), CU_MEM_HANDLE_TYPE_NONE);
	check_mapped(CU_MEM_HANDLE_TYPE_NONE);
	check_mapped(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	check_pooled(CU_MEM_HANDLE_TYPE_NONE);
	check_pooled(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	return 0;
}
