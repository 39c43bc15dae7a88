/* What is asked of devices and of the driver itself. */
#include "calls.h"

static void require_on(CUdeviceptr memory, int device)
{
	int value;

	CHECK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
	REQUIRE_EQUAL(value, device);
}

/* Memory of another device's pool, and what is mapped of it, is that device's, whatever is current. */
static void elsewhere(void)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1 },
	};
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = props.location };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr memory;
	CUmemoryPool pool;
	size_t bytes;

	CHECK(cuMemPoolCreate(&pool, &props));
	CHECK(cuMemAllocFromPoolAsync(&memory, 64, pool, NULL));
	require_on(memory, 1);
	CHECK(cuMemFreeAsync(memory, NULL));
	CHECK(cuMemPoolDestroy(pool));
	CHECK(cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	CHECK(cuMemCreate(&handle, bytes, &prop, 0));
	CHECK(cuMemAddressReserve(&memory, bytes, 0, 0, 0));
	CHECK(cuMemMap(memory, bytes, 0, handle, 0));
	require_on(memory + 64, 1);
	CHECK(cuMemUnmap(memory, bytes));
	CHECK(cuMemAddressFree(memory, bytes));
	CHECK(cuMemRelease(handle));
}

int main(void)
{
	CUdriverProcAddressQueryResult status;
	CUresult (*count)(int *);
	CUmemoryPool before, mine, found;
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	};
	int value, major, minor, here;
	const char *text;
	CUdevprop properties;
	CUuuid first, second;
	CUdeviceptr memory;
	CUcontext there;

	begin();
	CHECK(cuDeviceComputeCapability(&major, &minor, 0));
	CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
	REQUIRE_EQUAL(major, value);
	CHECK(cuDeviceGetProperties(&properties, 0));
	CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0));
	REQUIRE_EQUAL(properties.maxThreadsPerBlock, value);
	CHECK(cuDeviceGetUuid_v2(&first, 0));
	CHECK(cuDeviceGetUuid_v2(&second, 1));
	REQUIRE(memcmp(&first, &second, sizeof(first)));

	/* Peers. */
	CHECK(cuDeviceCanAccessPeer(&value, 0, 1));
	CHECK(cuDeviceGetP2PAttribute(&here, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
	REQUIRE_EQUAL(value, here);
	CHECK(cuDevicePrimaryCtxRetain(&there, 1));
	if (value) {
		CHECK(cuCtxEnablePeerAccess(there, 0));
		EXPECT(cuCtxEnablePeerAccess(there, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
		CHECK(cuCtxDisablePeerAccess(there));
		EXPECT(cuCtxDisablePeerAccess(there), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	}

	/* A device's pool is what cuMemAllocAsync allocates from. */
	CHECK(cuDeviceGetMemPool(&before, 0));
	CHECK(cuMemPoolCreate(&mine, &props));
	CHECK(cuDeviceSetMemPool(0, mine));
	CHECK(cuDeviceGetMemPool(&found, 0));
	REQUIRE(found == mine && mine != before);
	CHECK(cuMemAllocAsync(&memory, 64, NULL));
	CHECK(cuCtxSynchronize());
	{
		cuuint64_t used;

		CHECK(cuMemPoolGetAttribute(mine, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
		REQUIRE(used >= 64);
	}
	CHECK(cuMemFreeAsync(memory, NULL));
	CHECK(cuDeviceSetMemPool(0, before));
	elsewhere();

	/* The driver. */
	CHECK(cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &text));
	REQUIRE(!strcmp(text, "CUDA_ERROR_INVALID_VALUE"));
	CHECK(cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &text));
	REQUIRE(strstr(text, "invalid"));
	CHECK(cuGetProcAddress("cuDeviceGetCount", (void **)&count, 12000, 0));
	CHECK(count(&value));
	REQUIRE_EQUAL(value, 2);
	CHECK(cuGetProcAddress_v2("cuDeviceGetCount", (void **)&count, 12000, 0, &status));
	REQUIRE_EQUAL(status, CU_GET_PROC_ADDRESS_SUCCESS);
	EXPECT(cuGetProcAddress("cuNothingOfTheKind", (void **)&count, 12000, 0), CUDA_ERROR_NOT_FOUND);
	CHECK(cuProfilerStart());
	CHECK(cuProfilerStop());
	return 0;
}
