/* What pointers point into. */
#include "driver.h"

static unsigned type_of(CUdeviceptr address)
{
	unsigned type;

	CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
	return type;
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
	return 0;
}
