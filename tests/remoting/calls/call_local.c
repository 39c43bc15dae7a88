/* What the shim answers by other functions, whatever driver the server has. */
#include "calls.h"

static CUstream stream;

static void test_batches(void)
{
	CUdeviceptr memory = words(8, 3), target = words(8, 0);
	unsigned here[2] = { 21, 22 };
	CUdeviceptr to[3] = { target, target + 4, target + 8 };
	CUdeviceptr from[3] = { memory, (CUdeviceptr)(uintptr_t)here, (CUdeviceptr)(uintptr_t)(here + 1) };
	size_t sizes[3] = { 4, 4, 4 }, index = 0, failed;
	CUmemcpyAttributes attribute = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
	CUDA_MEMCPY3D_BATCH_OP op = {
		.src = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = { .ptr = memory } },
		.dst = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = { .ptr = target + 16 } },
		.extent = { 4, 1, 1 },
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
	};

	CHECK(cuMemcpyBatchAsync(to, from, sizes, 3, &attribute, &index, 1, &failed, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(word_at(target) == 3 && word_at(target + 4) == 21 && word_at(target + 8) == 22);
	here[0] = 23;
	CHECK(cuMemcpyBatchAsync_v2(to, from, sizes, 3, &attribute, &index, 1, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(target + 4), 23);
	sizes[2] = 0;
	EXPECT(cuMemcpyBatchAsync(to, from, sizes, 3, &attribute, &index, 1, &failed, stream),
	       CUDA_ERROR_INVALID_VALUE);
	REQUIRE_EQUAL(failed, 2);
	CHECK(cuMemcpy3DBatchAsync(1, &op, &failed, 0, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(target + 16), 3);
	op.dst.op.ptr.ptr = target + 20;
	CHECK(cuMemcpy3DBatchAsync_v2(1, &op, 0, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(target + 20), 3);
	CHECK(cuMemFree_v2(memory));
	CHECK(cuMemFree_v2(target));
}

static void note(void *argument)
{
	++*(int *)argument;
}

static void test_peers(void)
{
	CUdeviceptr memory = words(16, 5), target = words(32, 0);
	CUDA_MEMCPY3D_PEER peer = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcPitch = 16, .srcHeight = 4,
				    .srcDevice = memory, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
				    .dstDevice = target, .dstPitch = 16, .dstHeight = 4,
				    .WidthInBytes = 16, .Height = 4, .Depth = 1 };

	CHECK(cuCtxGetCurrent(&peer.srcContext));
	peer.dstContext = peer.srcContext;
	CHECK(cuMemcpy3DPeer(&peer));
	REQUIRE_EQUAL(word_at(target + 60), 5);
	peer.dstDevice = target + 64;
	CHECK(cuMemcpy3DPeerAsync(&peer, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(target + 124), 5);
	peer.dstContext = (CUcontext)16;
	EXPECT(cuMemcpy3DPeer(&peer), CUDA_ERROR_INVALID_CONTEXT);
	CHECK(cuMemFree_v2(memory));
	CHECK(cuMemFree_v2(target));
}

/* The table by which cudart finds the primary context (native/cudart/tables.c). */
static void export_tables(CUcontext primary)
{
	static const unsigned char name[16] = { 0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
						0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9 };
	CUresult (*context_of)(CUcontext *context, CUdevice device);
	const void *table = NULL;
	CUcontext context;
	CUuuid uuid;

	memcpy(&uuid, name, sizeof(name));
	CHECK(cuGetExportTable(&table, &uuid));
	REQUIRE(*(const size_t *)table > 2 * sizeof(void *));
	memcpy(&context_of, (const char *)table + 2 * sizeof(void *), sizeof(context_of));
	CHECK(context_of(&context, 0));
	REQUIRE(context == primary);
	memset(&uuid, 0x11, sizeof(uuid));
	EXPECT(cuGetExportTable(&table, &uuid), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	static int here[1024];
	CUgreenCtx green = (CUgreenCtx)1;
	CUfunction function;
	CUlibrary library;
	CUkernel kernel;
	size_t count;
	int calls = 0;

	export_tables(begin());
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	test_batches();
	test_peers();
	CHECK(cuMemHostRegister(here, sizeof(here), 0));
	EXPECT(cuMemHostRegister(here, sizeof(here), 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	CHECK(cuMemHostUnregister(here));
	CHECK(cuStreamGetGreenCtx(stream, &green));
	REQUIRE(!green);
	function = store_kernel();
	CHECK(cuFuncGetParamCount(function, &count));
	REQUIRE_EQUAL(count, 2);
	CHECK(cuLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cuLibraryGetKernel(&kernel, library, "store"));
	count = 0;
	CHECK(cuKernelGetParamCount(kernel, &count));
	REQUIRE_EQUAL(count, 2);
	CHECK(cuLaunchHostFunc_v2(stream, note, &calls, 0));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(calls, 1);
	return 0;
}
