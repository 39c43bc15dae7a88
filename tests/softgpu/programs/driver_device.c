/* softgpu: count=2,cc=8.9,mem=128MiB,sms=12
 * The model is the one that was asked for; devices differ in what names them. */
#include "driver.h"

static int attribute(CUdevice_attribute attribute, CUdevice device)
{
	int value;

	CHECK(cuDeviceGetAttribute(&value, attribute, device));
	return value;
}

int main(void)
{
	char name[2][64], bus[2][32];
	CUuuid uuid[2];
	CUdevice device;
	size_t bytes;
	int count, version;

	EXPECT(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
	EXPECT(cuInit(1), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuInit(0));
	CHECK(cuInit(0));
	CHECK(cuDriverGetVersion(&version));
	REQUIRE_EQUAL(version, 13000);
	CHECK(cuDeviceGetCount(&count));
	REQUIRE_EQUAL(count, 2);
	EXPECT(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
	EXPECT(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
	for (int i = 0; i < 2; i++) {
		CHECK(cuDeviceGet(&device, i));
		CHECK(cuDeviceGetName(name[i], sizeof name[i], device));
		CHECK(cuDeviceGetPCIBusId(bus[i], sizeof bus[i], device));
		CHECK(cuDeviceGetUuid(&uuid[i], device));
		CHECK(cuDeviceTotalMem(&bytes, device));
		REQUIRE_EQUAL(bytes, 128ul << 20);
		CHECK(cuDeviceGetByPCIBusId(&device, bus[i]));
		REQUIRE_EQUAL(device, i);
	}
	REQUIRE(!strcmp(name[0], name[1]));	/* one model */
	REQUIRE(strcmp(bus[0], bus[1]));
	REQUIRE(memcmp(&uuid[0], &uuid[1], sizeof uuid[0]));
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0), 8);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0), 9);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1), 12);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 1), 1536);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 1), 101376);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1), 32);
	/* Not before 9.0. */
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0), 0);
	REQUIRE_EQUAL(attribute(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0), 0);
	EXPECT(cuDeviceGetAttribute(&count, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuDeviceGetAttribute(&count, 100000, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuDeviceGetAttribute(&count, 1, 2), CUDA_ERROR_INVALID_DEVICE);
	return 0;
}
