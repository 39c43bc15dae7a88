/* Memory: pinned and registered, filled in every width, copied in every shape, pools' settings. */
#include "calls.h"

static CUstream stream;

static void test_fills(void)
{
	CUdeviceptr memory = words(64, 0);
	unsigned char bytes[256];

	CHECK(cuMemsetD8_v2(memory, 1, 4));
	CHECK(cuMemsetD8Async(memory + 4, 2, 4, stream));
	CHECK(cuMemsetD16_v2(memory + 8, 0x0303, 2));
	CHECK(cuMemsetD16Async(memory + 12, 0x0404, 2, stream));
	CHECK(cuMemsetD2D8_v2(memory + 16, 8, 5, 4, 2));
	CHECK(cuMemsetD2D8Async(memory + 32, 8, 6, 4, 2, stream));
	CHECK(cuMemsetD2D16_v2(memory + 48, 8, 0x0707, 2, 2));
	CHECK(cuMemsetD2D16Async(memory + 64, 8, 0x0808, 2, 2, stream));
	CHECK(cuMemsetD2D32_v2(memory + 80, 8, 0x09090909, 1, 2));
	CHECK(cuMemsetD2D32Async(memory + 96, 8, 0x0a0a0a0a, 1, 2, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemcpyDtoH_v2(bytes, memory, sizeof(bytes)));
	for (int i = 0; i < 4; i++) {
		REQUIRE_EQUAL(bytes[i], 1);
		REQUIRE_EQUAL(bytes[4 + i], 2);
		REQUIRE_EQUAL(bytes[8 + i], 3);
		REQUIRE_EQUAL(bytes[12 + i], 4);
		for (int kind = 0; kind < 6; kind++) {
			REQUIRE_EQUAL(bytes[16 + 16 * kind + i], 5 + kind);
			REQUIRE_EQUAL(bytes[24 + 16 * kind + i], 5 + kind);
			REQUIRE_EQUAL(bytes[20 + 16 * kind + i], 0);
		}
	}
	CHECK(cuMemFree_v2(memory));
}

static void test_pinned(void)
{
	static int registered[1024], again[1024];
	CUdeviceptr memory = words(1024, 5), base;
	unsigned flags;
	size_t bytes;
	int *pinned;

	CHECK(cuMemAllocHost_v2((void **)&pinned, 4096));
	CHECK(cuMemHostGetFlags(&flags, pinned));
	CHECK(cuMemHostRegister_v2(registered, sizeof(registered), 0));
	CHECK(cuMemHostRegister_v2(again, sizeof(again), 0));
	EXPECT(cuMemHostRegister_v2(registered, sizeof(registered), 0),
	       CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	CHECK(cuMemcpyDtoHAsync_v2(registered, memory, sizeof(registered), stream));
	CHECK(cuMemcpyAsync((CUdeviceptr)(uintptr_t)pinned, memory, 4096, stream));
	CHECK(cuMemcpyDtoHAsync_v2(again, memory, sizeof(again), stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(registered[1023] == 5 && pinned[1023] == 5 && again[1023] == 5);
	EXPECT(cuMemHostUnregister(registered + 1), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemHostUnregister(registered));
	CHECK(cuMemHostUnregister(again));
	CHECK(cuMemFreeHost(pinned));
	CHECK(cuMemGetAddressRange_v2(&base, &bytes, memory + 100));
	REQUIRE(base == memory && bytes == 4096);
	CHECK(cuMemFree_v2(memory));
}

static void test_pointers(void)
{
	CUpointer_attribute asked[2] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
					 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
	CUdeviceptr memory = words(4, 0);
	unsigned type = 0, sync = 1;
	int ordinal = -5;
	void *told[2] = { &type, &ordinal };

	CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
	REQUIRE_EQUAL(type, CU_MEMORYTYPE_DEVICE);
	type = 0;
	CHECK(cuPointerGetAttributes(2, asked, told, memory));
	REQUIRE(type == CU_MEMORYTYPE_DEVICE && ordinal == 0);
	CHECK(cuPointerSetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
	CHECK(cuMemFree_v2(memory));
}

/* Pinned memory where a device's is expected: one address for both. */
static void test_pinned_as_device(void)
{
	CUdeviceptr memory = words(4, 0), there;
	unsigned *pinned, here[4] = { 1, 2, 3, 4 }, back[4] = { 0 };

	CHECK(cuMemHostAlloc((void **)&pinned, 64, CU_MEMHOSTALLOC_PORTABLE));
	there = (CUdeviceptr)(uintptr_t)pinned;
	CUDA_MEMCPY2D row = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = there,
			      .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory,
			      .WidthInBytes = 4, .Height = 1 };

	CHECK(cuMemcpyHtoD_v2(there, here, sizeof(here)));
	REQUIRE(pinned[0] == 1 && pinned[3] == 4);
	pinned[1] = 22;
	CHECK(cuMemcpyDtoHAsync_v2(back, there, sizeof(back), stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(back[0] == 1 && back[1] == 22);
	CHECK(cuMemcpyDtoD_v2(memory, there, sizeof(here)));
	REQUIRE_EQUAL(word_at(memory + 4), 22);
	CHECK(cuMemsetD32Async(memory + 8, 33, 1, stream));
	CHECK(cuMemcpyDtoDAsync_v2(there, memory, sizeof(here), stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(pinned[2], 33);
	pinned[0] = 11;
	CHECK(cuMemcpy2D_v2(&row));
	REQUIRE_EQUAL(word_at(memory), 11);
	CHECK(cuMemFreeHost(pinned));
	CHECK(cuMemFree_v2(memory));
}

/* A box of 2 x 2 x 2 words in one of 4 x 4 x 4. */
static void test_shapes(void)
{
	CUdeviceptr memory = words(64, 0), second = words(64, 0);
	unsigned here[64] = { 0 }, back[64];
	CUcontext context;
	CUDA_MEMCPY2D rows = { .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = here, .srcPitch = 16,
			       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory, .dstPitch = 16,
			       .dstXInBytes = 4, .dstY = 1, .WidthInBytes = 8, .Height = 2 };
	CUDA_MEMCPY3D box = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = memory, .srcPitch = 16,
			      .srcHeight = 4, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = second,
			      .dstPitch = 16, .dstHeight = 4, .dstXInBytes = 4, .dstY = 1, .dstZ = 1,
			      .WidthInBytes = 12, .Height = 3, .Depth = 2 };

	CHECK(cuCtxGetCurrent(&context));
	here[0] = 1, here[1] = 2, here[4] = 3, here[5] = 4;
	CHECK(cuMemcpy2D_v2(&rows));
	CHECK(cuMemcpyDtoH_v2(back, memory, sizeof(back)));
	REQUIRE(back[5] == 1 && back[6] == 2 && back[9] == 3 && back[10] == 4 && !back[4] && !back[7]);
	here[0] = 10;
	CHECK(cuMemcpy2DUnaligned_v2(&rows));
	REQUIRE_EQUAL(word_at(memory + 20), 10);
	here[0] = 11;
	CHECK(cuMemcpy2DAsync_v2(&rows, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(memory + 20), 11);
	CHECK(cuMemcpy3D_v2(&box));
	REQUIRE_EQUAL(word_at(second + 4 * (16 + 8 + 2)), 11);
	CHECK(cuMemsetD32_v2(second, 0, 64));
	CHECK(cuMemcpy3DAsync_v2(&box, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(second + 4 * (16 + 8 + 2)), 11);
	CHECK(cuMemcpyDtoD_v2(second, memory, 64));
	REQUIRE_EQUAL(word_at(second + 20), 11);
	CHECK(cuMemcpyDtoDAsync_v2(second + 64, memory, 64, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(second + 84), 11);
	CHECK(cuMemcpy(second + 128, memory, 64));
	REQUIRE_EQUAL(word_at(second + 148), 11);
	CHECK(cuMemcpyPeer(second + 192, context, memory, context, 64));
	REQUIRE_EQUAL(word_at(second + 212), 11);
	CHECK(cuMemsetD32_v2(second, 0, 64));
	CHECK(cuMemcpyPeerAsync(second, context, memory, context, 64, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(second + 20), 11);
	CHECK(cuMemFree_v2(memory));
	CHECK(cuMemFree_v2(second));
}

static void test_pools(void)
{
	CUmemLocation here = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 };
	CUmemLocation there = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1 };
	CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here };
	CUmemAccessDesc access = { .location = there, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemoryPool pool, found, standard;
	int reuse[3] = { 5, 0, 77 };
	CUmemAccess_flags flags;
	int peers;

	CHECK(cuMemGetDefaultMemPool(&standard, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
	CHECK(cuDeviceGetDefaultMemPool(&found, 0));
	REQUIRE(found == standard);
	CHECK(cuMemPoolCreate(&pool, &props));
	/* Some attributes are an int, and what lies behind it is not theirs. */
	CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse[1]));
	CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse[0]));
	REQUIRE(reuse[0] == 0 && reuse[1] == 0 && reuse[2] == 77);
	reuse[1] = 78;
	CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse[0]));
	REQUIRE_EQUAL(reuse[1], 78);
	CHECK(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
	CHECK(cuMemGetMemPool(&found, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
	REQUIRE(found == pool);
	CHECK(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, standard));
	CHECK(cuMemPoolGetAccess(&flags, pool, &here));
	REQUIRE_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	CHECK(cuDeviceCanAccessPeer(&peers, 1, 0));
	if (peers) {
		CHECK(cuMemPoolSetAccess(pool, &access, 1));
		CHECK(cuMemPoolGetAccess(&flags, pool, &there));
		REQUIRE_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	}
	CHECK(cuMemPoolDestroy(pool));
	EXPECT(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	test_fills();
	test_pinned();
	test_pointers();
	test_pinned_as_device();
	test_shapes();
	test_pools();
	return 0;
}
