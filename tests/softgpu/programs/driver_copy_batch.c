/* softgpu: count=2,mem=64MiB
 * Copies in batches, of lines and of boxes, in texels where an array takes part; and boxes between two contexts. */
#include "driver.h"

#include <stdint.h>

CUresult cuMemcpyBatchAsync(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t,
			    size_t *, CUstream);
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *,
			       size_t, CUstream);
CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *,
				    size_t, CUstream);
CUresult cuMemcpy3DBatchAsync(size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long, CUstream);
CUresult cuMemcpy3DBatchAsync_v2(size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream);
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *);
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *, CUstream);
CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);

static CUstream stream;

static CUdeviceptr words(unsigned count, unsigned value)
{
	CUdeviceptr memory;

	CHECK(cuMemAlloc(&memory, count * 4));
	CHECK(cuMemsetD32(memory, value, count));
	return memory;
}

static unsigned word_at(CUdeviceptr address)
{
	unsigned value;

	CHECK(cuMemcpyDtoH(&value, address, 4));
	return value;
}

static void test_lines(void)
{
	CUmemcpyAttributes attributes[2] = { { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM },
					     { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY } };
	CUdeviceptr source = words(4, 3), target = words(4, 0);
	unsigned here[2] = { 21, 22 }, back = 0;
	CUdeviceptr to[3] = { target, target + 4, (uintptr_t)&back };
	CUdeviceptr from[3] = { source, (uintptr_t)here, source };
	size_t sizes[3] = { 4, 8, 4 }, indices[2] = { 0, 2 }, failed;

	CHECK(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, indices, 2, &failed, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(failed, SIZE_MAX);
	REQUIRE(word_at(target) == 3 && word_at(target + 4) == 21 && word_at(target + 8) == 22 && back == 3);
	here[0] = 23;
	CHECK(cuMemcpyBatchAsync_v2(to, from, sizes, 3, attributes, indices, 2, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(target + 4), 23);
	CHECK(cuMemcpyBatchAsync_v2_ptsz(to, from, sizes, 3, attributes, indices, 2, CU_STREAM_PER_THREAD));

	/* The first that can't be made is told. */
	sizes[1] = 0;
	EXPECT(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, indices, 2, &failed, stream),
	       CUDA_ERROR_INVALID_VALUE);
	REQUIRE_EQUAL(failed, 1);
	sizes[1] = 8;
	indices[1] = 3;
	EXPECT(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, indices, 2, &failed, stream),
	       CUDA_ERROR_INVALID_VALUE);
	REQUIRE_EQUAL(failed, SIZE_MAX);
	EXPECT(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, indices, 0, &failed, stream),
	       CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyBatchAsync(to, from, sizes, 0, attributes, indices, 1, &failed, stream),
	       CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, indices, 1, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
	EXPECT(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, indices, 1, NULL, stream),
	       CUDA_ERROR_INVALID_VALUE);
}

/* Two rows of two texels of eight bytes, into an array and out of it. */
static void test_boxes(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR descriptor = { .Width = 4, .Height = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT32,
						     .NumChannels = 2 };
	CUdeviceptr source = words(16, 6), target = words(16, 0);
	CUDA_MEMCPY3D_BATCH_OP operations[2] = {
		{ .src = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = { .ptr = source, .rowLength = 4 } },
		  .dst = { .type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .op.array.offset = { 1, 1, 0 } },
		  .extent = { 2, 2, 1 }, .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM },
		{ .src = { .type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .op.array.offset = { 1, 2, 0 } },
		  .dst = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = { .ptr = target } },
		  .extent = { 2, 1, 1 }, .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM },
	};
	CUarray array;
	size_t failed;

	CHECK(cuMemsetD32(source + 32, 8, 4));	/* the second row */
	CHECK(cuArray3DCreate_v2(&array, &descriptor));
	operations[0].dst.op.array.array = operations[1].src.op.array.array = array;
	CHECK(cuMemcpy3DBatchAsync(2, operations, &failed, 0, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(target), 8);
	REQUIRE_EQUAL(word_at(target + 12), 8);
	REQUIRE_EQUAL(word_at(target + 16), 0);
	CHECK(cuMemcpy3DBatchAsync_v2(2, operations, 0, stream));
	operations[1].extent.width = 4;	/* leaves the array */
	EXPECT(cuMemcpy3DBatchAsync(2, operations, &failed, 0, stream), CUDA_ERROR_INVALID_VALUE);
	REQUIRE_EQUAL(failed, 1);
	EXPECT(cuMemcpy3DBatchAsync(2, operations, &failed, 1, stream), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuStreamSynchronize(stream));
}

static void test_peers(void)
{
	CUDA_MEMCPY3D_PEER box = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcPitch = 16, .srcDevice = words(16, 5),
				   .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstPitch = 16,
				   .WidthInBytes = 16, .Height = 4, .Depth = 1 };
	CUcontext there;

	CHECK(cuCtxGetCurrent(&box.srcContext));
	CHECK(cuCtxCreate(&there, 0, 1));
	box.dstContext = there;
	box.dstDevice = words(32, 0);
	CHECK(cuCtxPopCurrent(NULL));
	CHECK(cuMemcpy3DPeer(&box));
	REQUIRE_EQUAL(word_at(box.dstDevice + 60), 5);
	REQUIRE_EQUAL(word_at(box.dstDevice + 64), 0);
	box.dstDevice += 64;
	CHECK(cuMemcpy3DPeerAsync(&box, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(box.dstDevice + 60), 5);
	box.dstContext = (CUcontext)16;
	EXPECT(cuMemcpy3DPeer(&box), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuMemcpy3DPeer(NULL), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	test_lines();
	test_boxes();
	test_peers();
	return 0;
}
