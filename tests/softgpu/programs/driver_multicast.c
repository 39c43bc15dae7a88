/* softgpu: count=3 */
/* A multicast object of two devices: what each has bound is read, written and changed together by multimem, and by
 * nothing else but copies and fills, which write.  A third device is none of them. */
#include "driver.h"
#include "multicast.h"

#include <sys/wait.h>

#define DEVICES 2
#define SIZE (2 * GRANULE)

static CUcontext contexts[3];
static CUmemGenericAllocationHandle memories[3], team;
static CUdeviceptr plain[3], multi[DEVICES];

static CUmemGenericAllocationHandle team_of(unsigned devices, size_t size)
{
	const CUmulticastObjectProp properties = { .numDevices = devices, .size = size };
	CUmemGenericAllocationHandle made;

	CHECK(cuMulticastCreate(&made, &properties));
	return made;
}

static void use(CUdevice device)
{
	CHECK(cuCtxSetCurrent(contexts[device]));
}

static void devices_begin(void)
{
	int supported = 0;

	CHECK(cuInit(0));
	for (CUdevice device = 0; device < 3; device++) {
		CHECK(cuDevicePrimaryCtxRetain(&contexts[device], device));
		use(device);
		CHECK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device));
		REQUIRE_EQUAL(supported, 1);
		memories[device] = memory_of_device(device, SIZE, false);
		plain[device] = map_for(device, memories[device], 0, SIZE);
	}
	use(0);
}

/* ---- what the calls refuse ---- */

static void bad_objects(void)
{
	CUmulticastObjectProp properties = { .numDevices = DEVICES, .size = SIZE };
	CUmemGenericAllocationHandle made;
	size_t granularity = 0;

	CHECK(cuMulticastGetGranularity(&granularity, &properties, CU_MULTICAST_GRANULARITY_MINIMUM));
	REQUIRE_EQUAL(granularity, GRANULE);
	CHECK(cuMulticastGetGranularity(&granularity, &properties, CU_MULTICAST_GRANULARITY_RECOMMENDED));
	REQUIRE(granularity && SIZE % granularity == 0);
	EXPECT(cuMulticastGetGranularity(&granularity, &properties, 2), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastGetGranularity(NULL, &properties, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastGetGranularity(&granularity, NULL, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastCreate(NULL, &properties), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastCreate(&made, NULL), CUDA_ERROR_INVALID_VALUE);
	properties.size = SIZE + 4096;
	EXPECT(cuMulticastCreate(&made, &properties), CUDA_ERROR_INVALID_VALUE);
	properties.size = 0;
	EXPECT(cuMulticastCreate(&made, &properties), CUDA_ERROR_INVALID_VALUE);
	properties.size = SIZE;
	properties.flags = 1;
	EXPECT(cuMulticastCreate(&made, &properties), CUDA_ERROR_INVALID_VALUE);
	properties.flags = 0;
	properties.numDevices = 0;
	EXPECT(cuMulticastCreate(&made, &properties), CUDA_ERROR_INVALID_VALUE);
}

static void bad_binds(void)
{
	CUmemAllocationProp properties;

	EXPECT(cuMulticastAddDevice(memories[0], 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastAddDevice(0x1230, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastAddDevice(team, 2), CUDA_ERROR_INVALID_VALUE);	/* it is complete */
	EXPECT(cuMulticastBindMem(memories[0], 0, memories[0], 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindMem(team, 0, team, 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindMem(team, 0, 0x1230, 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindMem(team, 0, memories[2], 0, SIZE, 0), CUDA_ERROR_INVALID_DEVICE);
	EXPECT(cuMulticastBindMem(team, GRANULE, memories[0], 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindMem(team, 0, memories[0], GRANULE, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindMem(team, 4096, memories[0], 0, GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindMem(team, 0, memories[0], 4096, GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindMem(team, 0, memories[0], 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindMem(team, 0, memories[0], 0, SIZE, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindMem(team, -GRANULE, memories[0], 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindMem(team, 0, memories[0], 0, -GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindAddr(team, 0, plain[0] + 4096, GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindAddr(team, 0, plain[0] + GRANULE, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastBindAddr(team, 0, plain[2], SIZE, 0), CUDA_ERROR_INVALID_DEVICE);
	EXPECT(cuMulticastUnbind(team, 0, 0, SIZE), CUDA_ERROR_INVALID_VALUE);	/* nothing is bound */
	EXPECT(cuMulticastUnbind(memories[0], 0, 0, SIZE), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemGetAllocationPropertiesFromHandle(&properties, team), CUDA_ERROR_INVALID_VALUE);
}

/* ---- a team ---- */

static void *bind_first(void *unused)
{
	(void)unused;
	use(0);
	/* Waits until the other device belongs to it. */
	CHECK(cuMulticastBindMem(team, 0, memories[0], 0, SIZE, 0));
	return NULL;
}

static void *map_first(void *unused)
{
	(void)unused;
	use(0);
	multi[0] = map_for(0, team, 0, SIZE);
	return NULL;
}

static void team_begin(void)
{
	pthread_t binder, mapper;

	team = team_of(DEVICES, SIZE);
	CHECK(cuMulticastAddDevice(team, 0));
	EXPECT(cuMulticastAddDevice(team, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastAddDevice(team, 3), CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(!pthread_create(&binder, NULL, bind_first, NULL));
	REQUIRE(!pthread_create(&mapper, NULL, map_first, NULL));
	/* Calls of other threads wait for neither. */
	for (unsigned i = 0; i < 100; i++) {
		use(1);
		CHECK(cuMemRelease(memory_of_device(1, GRANULE, false)));
	}
	CHECK(cuMulticastAddDevice(team, 1));
	REQUIRE(!pthread_join(binder, NULL));
	REQUIRE(!pthread_join(mapper, NULL));
	CHECK(cuMulticastUnbind(team, 0, 0, SIZE));
	multi[1] = map_for(1, team, 0, SIZE);
	bad_binds();
	for (CUdevice device = 0; device < DEVICES; device++)
		CHECK(cuMulticastBindMem(team, 0, memories[device], 0, SIZE, 0));
	EXPECT(cuMulticastBindMem(team, GRANULE, memories[0], 0, GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
}

static unsigned word_of(CUdevice device, size_t at)
{
	unsigned value;

	use(device);
	CHECK(cuMemcpyDtoH(&value, plain[device] + at, 4));
	return value;
}

static void words_set(size_t at, unsigned first, unsigned second)
{
	use(0);
	CHECK(cuMemsetD32(plain[0] + at, first, 4));
	CHECK(cuCtxSynchronize());
	use(1);
	CHECK(cuMemsetD32(plain[1] + at, second, 4));
	CHECK(cuCtxSynchronize());
}

static void together(void)
{
	const unsigned one = 0x3f803f80, three = 0x40404040, four = 0x40804080;	/* bf16 */
	const float half = 0.5f, other = 2.25f;
	unsigned got[4], add = 5;
	CUdeviceptr out;
	float sums[4];

	for (CUdevice device = 0; device < DEVICES; device++) {
		use(device);
		CHECK(cuMemAlloc(&out, 16));
		words_set(64, 40, 2);
		use(device);
		CHECK(multimem("sum_u32", multi[device] + 64, &out));
		CHECK(cuMemcpyDtoH(got, out, 4));
		REQUIRE_EQUAL(got[0], 42);
		CHECK(multimem("add_u32", multi[device] + 64, &add));
		REQUIRE(word_of(0, 64) == 45 && word_of(1, 64) == 7 && word_of(0, 68) == 40);

		use(device);
		CHECK(multimem("store_f32", multi[device] + SIZE - 16, &half));
		for (size_t at = SIZE - 16; at < SIZE; at += 4)
			REQUIRE(word_of(0, at) == 0x3f000000 && word_of(1, at) == 0x3f000000);
		use(1);
		CHECK(cuMemcpyHtoD(plain[1] + SIZE - 8, &other, 4));
		use(device);
		CHECK(multimem("sum_f32", multi[device] + SIZE - 16, &out));
		CHECK(cuMemcpyDtoH(sums, out, 16));
		REQUIRE(sums[0] == 1.0f && sums[1] == 1.0f && sums[2] == 2.75f && sums[3] == 1.0f);

		words_set(GRANULE, one, three);
		use(device);
		CHECK(multimem("sum_bf16", multi[device] + GRANULE, &out));
		CHECK(cuMemcpyDtoH(got, out, 16));
		REQUIRE(got[0] == four && got[1] == four && got[2] == four && got[3] == four);
		CHECK(cuMemFree(out));
	}
}

/* Memory by its address, at another place of the object; a second mapping of a part of that. */
static void by_address(void)
{
	CUmemGenericAllocationHandle kept;
	CUdeviceptr part, pooled[DEVICES], out;
	unsigned got;

	for (CUdevice device = 0; device < DEVICES; device++) {
		EXPECT(cuMulticastUnbind(team, device, 0, GRANULE), CUDA_ERROR_INVALID_VALUE);
		CHECK(cuMulticastUnbind(team, device, 0, SIZE));
	}
	CHECK(cuMulticastBindAddr(team, GRANULE, plain[0], GRANULE, 0));
	CHECK(cuMulticastBindAddr(team, GRANULE, plain[1] + GRANULE, GRANULE, 0));
	use(0);
	part = map_for(0, team, GRANULE, GRANULE);
	CHECK(cuMemRetainAllocationHandle(&kept, (void *)part));
	REQUIRE(kept == team);
	CHECK(cuMemRelease(kept));
	got = 9;
	CHECK(multimem("add_u32", part + 512, &got));
	CHECK(cuMemAlloc(&out, 4));
	words_set(1024, 0, 0);
	use(0);
	REQUIRE(word_of(0, 512) == 9 && word_of(1, GRANULE + 512) == 9);
	use(0);
	CHECK(multimem("sum_u32", multi[0] + GRANULE + 512, &out));
	CHECK(cuMemcpyDtoH(&got, out, 4));
	REQUIRE_EQUAL(got, 18);
	CHECK(cuMemUnmap(part, GRANULE));
	CHECK(cuMemAddressFree(part, GRANULE));

	/* And memory of pools. */
	for (CUdevice device = 0; device < DEVICES; device++) {
		use(device);
		CHECK(cuMemAllocAsync(&pooled[device], GRANULE, NULL));
		CHECK(cuMemsetD32(pooled[device], 100 + (unsigned)device, 4));
		CHECK(cuCtxSynchronize());
		CHECK(cuMulticastBindAddr(team, 0, pooled[device], GRANULE, 0));
	}
	use(0);
	CHECK(multimem("sum_u32", multi[0], &out));
	CHECK(cuMemcpyDtoH(&got, out, 4));
	REQUIRE_EQUAL(got, 201);
	for (CUdevice device = 0; device < DEVICES; device++) {
		CHECK(cuMulticastUnbind(team, device, 0, GRANULE));
		use(device);
		CHECK(cuMemFreeAsync(pooled[device], NULL));
	}
	EXPECT(cuMulticastBindAddr(team, 0, out, GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
	use(0);
	CHECK(cuMemFree(out));
}

/* Copies and fills write to all memory, too, and don't read it. */
static void copied(void)
{
	static unsigned values[1024], got[1024];
	const CUDA_MEMCPY2D rows = {
		.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = values, .srcPitch = 64,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = multi[0] + GRANULE + 65536, .dstPitch = 512,
		.WidthInBytes = 64, .Height = 4,
	};
	CUdeviceptr aside;
	unsigned value;

	for (unsigned i = 0; i < 1024; i++)
		values[i] = i * 7;
	use(0);
	/* What is bound there begins at different places, and so it does behind the middle. */
	CHECK(cuMulticastBindMem(team, 0, memories[0], GRANULE, GRANULE, 0));
	CHECK(cuMulticastBindMem(team, 0, memories[1], 0, GRANULE, 0));
	CHECK(cuMemcpyHtoD(multi[0] + GRANULE - 2048, values, sizeof values));
	CHECK(cuMemcpyDtoH(got, plain[0] + SIZE - 2048, 2048));
	CHECK(cuMemcpyDtoH(got + 512, plain[0], 2048));
	REQUIRE(!memcmp(got, values, sizeof got));
	use(1);
	CHECK(cuMemcpyDtoH(got, plain[1] + GRANULE - 2048, 2048));
	CHECK(cuMemcpyDtoH(got + 512, plain[1] + GRANULE, 2048));
	REQUIRE(!memcmp(got, values, sizeof got));
	CHECK(cuMemcpy2D(&rows));
	CHECK(cuMemcpyDtoH(got, plain[1] + GRANULE + 65536 + 512, 64));
	REQUIRE(!memcmp(got, values + 16, 64));
	CHECK(cuMemAlloc(&aside, 4096));
	CHECK(cuMemcpyHtoD(aside, values + 5, 4));
	CHECK(cuMemcpyDtoDAsync(multi[1] + 4096, aside, 4, NULL));
	CHECK(cuMemsetD32(multi[1] + 8192, 77, 2));
	CHECK(cuCtxSynchronize());
	REQUIRE(word_of(0, GRANULE + 4096) == 35 && word_of(1, 4096) == 35);
	REQUIRE(word_of(0, GRANULE + 8196) == 77 && word_of(1, 8196) == 77);
	EXPECT(cuMemcpyDtoH(&value, multi[0], 4), CUDA_ERROR_INVALID_VALUE);
	use(1);
	CHECK(cuMemFree(aside));
	for (CUdevice device = 0; device < DEVICES; device++)
		for (size_t at = 0; at < SIZE; at += GRANULE)
			CHECK(cuMulticastUnbind(team, device, at, GRANULE));
}

/* Its memory goes with the last of handle and mappings, and what was bound is free again. */
static void end(void)
{
	size_t before, after, total;

	use(0);
	CHECK(cuMemGetInfo(&before, &total));
	CHECK(cuMulticastBindMem(team, 0, memories[0], 0, GRANULE, 0));
	CHECK(cuMemUnmap(plain[0], SIZE));
	CHECK(cuMemRelease(memories[0]));
	CHECK(cuMemGetInfo(&after, &total));
	REQUIRE_EQUAL(after, before);	/* it is bound still */
	CHECK(cuMemRelease(team));
	EXPECT(cuMulticastAddDevice(team, 0), CUDA_ERROR_INVALID_VALUE);
	for (CUdevice device = 0; device < DEVICES; device++)
		CHECK(cuMemUnmap(multi[device], SIZE));
	CHECK(cuMemGetInfo(&after, &total));
	REQUIRE_EQUAL(after, before + SIZE);
}

/* ---- what ends a kernel ---- */

static void faulty(const char *name, bool bound, bool open)
{
	pid_t child = fork();
	CUdeviceptr out;
	int status;

	if (child) {
		REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
		return;
	}
	devices_begin();
	team_begin();
	if (!bound)
		CHECK(cuMulticastUnbind(team, 1, 0, SIZE));
	use(0);
	CHECK(cuMemAlloc(&out, 16));
	EXPECT(multimem(name, open ? multi[0] : multi[1], &out), CUDA_ERROR_ILLEGAL_ADDRESS);
	exit(0);
}

int main(void)
{
	faulty("load_u32", true, true);
	faulty("sum_u32", false, true);
	faulty("sum_u32", true, false);
	devices_begin();
	bad_objects();
	team_begin();
	together();
	by_address();
	copied();
	end();
	return 0;
}
