/* The functions of CUDA 2 that name device memory with 32 bits. */
#include "calls.h"

static unsigned at32(CUdeviceptr_v1 address)
{
	unsigned value = 0;

	CHECK(cuMemcpyDtoH(&value, address, 4));
	return value;
}

static void planes(CUdeviceptr_v1 to)
{
	CUdeviceptr_v1 plane;
	unsigned pitch, value = 5, back = 0;
	CUDA_MEMCPY2D_v1 copy = {
		.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = &value, .srcPitch = 4,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE, .WidthInBytes = 4, .Height = 1,
	};
	CUDA_MEMCPY3D_v1 volume = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcPitch = 4, .srcHeight = 1,
		.dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = &back, .dstPitch = 4, .dstHeight = 1,
		.WidthInBytes = 4, .Height = 1, .Depth = 1,
	};

	CHECK(cuMemAllocPitch(&plane, &pitch, 40, 3, 4));
	REQUIRE(pitch >= 40);
	CHECK(cuMemsetD2D8(plane, pitch, 1, 40, 3));
	REQUIRE_EQUAL(at32(plane + 2 * pitch), 0x01010101);
	CHECK(cuMemsetD2D16(plane, pitch, 2, 20, 2));
	REQUIRE_EQUAL(at32(plane + pitch), 0x00020002);
	CHECK(cuMemsetD2D32(plane, pitch, 3, 10, 1));
	REQUIRE(at32(plane + 36) == 3 && at32(plane + 2 * pitch) == 0x01010101);
	copy.dstDevice = to;
	CHECK(cuMemcpy2D(&copy));
	REQUIRE_EQUAL(at32(to), 5);
	value = 6;
	CHECK(cuMemcpy2DUnaligned(&copy));
	REQUIRE_EQUAL(at32(to), 6);
	value = 7;
	CHECK(cuMemcpy2DAsync(&copy, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(at32(to), 7);
	volume.srcDevice = to;
	CHECK(cuMemcpy3D(&volume));
	REQUIRE_EQUAL(back, 7);
	CHECK(cuMemsetD32(to, 8, 1));
	CHECK(cuMemcpy3DAsync(&volume, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(back, 8);
	CHECK(cuMemFree(plane));
}

/* Texture references name the same memory; what they fetch, call_references.c shows. */
static void textures(CUdeviceptr_v1 memory, CUdeviceptr_v1 second)
{
	const CUDA_ARRAY_DESCRIPTOR_v1 shape = { 4, 1, CU_AD_FORMAT_UNSIGNED_INT32, 1 };
	CUdeviceptr_v1 told;
	unsigned offset = 1;
	CUtexref made;
	int channels;
	CUarray_format format;

	CHECK(cuTexRefCreate(&made));
	EXPECT(cuTexRefGetAddress(&told, made), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuTexRefSetAddress(&offset, made, memory + 16, 16));
	REQUIRE_EQUAL(offset, 16);
	CHECK(cuTexRefGetAddress(&told, made));
	REQUIRE_EQUAL(told, memory + 16);
	CHECK(cuTexRefSetAddress2D(made, &shape, second, 32));
	CHECK(cuTexRefGetAddress(&told, made));
	REQUIRE_EQUAL(told, second);
	CHECK(cuTexRefGetFormat(&format, &channels, made));
	REQUIRE(format == CU_AD_FORMAT_UNSIGNED_INT32 && channels == 1);
	EXPECT(cuTexRefSetAddress2D(made, NULL, second, 32), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuTexRefDestroy(made));
}

/* Where a variable lies is the driver's choice: its size is told, and an address of 32 bits
 * where it has one. */
static void variables(void)
{
	CUdeviceptr_v1 address;
	CUdeviceptr wide;
	unsigned bytes = 0;
	CUmodule module;
	size_t size;

	CHECK(cuModuleLoadData(&module, code));
	CHECK(cuModuleGetGlobal(NULL, &bytes, module, "counter"));
	REQUIRE_EQUAL(bytes, 4);
	EXPECT(cuModuleGetGlobal(NULL, &bytes, module, "none"), CUDA_ERROR_NOT_FOUND);
	CHECK(cuModuleGetGlobal_v2(&wide, &size, module, "counter"));
	if (wide >> 32) {
		EXPECT(cuModuleGetGlobal(&address, NULL, module, "counter"), CUDA_ERROR_NOT_SUPPORTED);
	} else {
		CHECK(cuModuleGetGlobal(&address, NULL, module, "counter"));
		REQUIRE_EQUAL(address, wide);
	}
	CHECK(cuModuleUnload(module));
}

int main(void)
{
	CUDA_ARRAY_DESCRIPTOR shape = { 16, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1 };
	CUdeviceptr_v1 memory, second, base;
	unsigned values[2] = { 3, 4 }, size;
	CUarray array;
	CUstream stream;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAlloc(&memory, 64));
	CHECK(cuMemAlloc(&second, 64));
	REQUIRE(memory && second && memory != second);
	CHECK(cuMemGetAddressRange(&base, &size, memory + 5));
	REQUIRE(base == memory && size == 64);

	CHECK(cuMemcpyHtoD(memory, values, 8));
	REQUIRE(at32(memory) == 3 && at32(memory + 4) == 4);
	CHECK(cuMemcpyDtoD(second, memory + 4, 4));
	REQUIRE_EQUAL(at32(second), 4);
	CHECK(cuMemcpyDtoDAsync(second, memory, 4, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(at32(second), 3);
	values[0] = 9;
	CHECK(cuMemcpyHtoDAsync(memory, values, 4, stream));
	CHECK(cuMemcpyDtoHAsync(&values[1], memory, 4, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(values[1], 9);
	CHECK(cuMemsetD8(memory, 1, 4));
	REQUIRE_EQUAL(at32(memory), 0x01010101);
	CHECK(cuMemsetD16(memory, 2, 2));
	REQUIRE_EQUAL(at32(memory), 0x00020002);
	CHECK(cuMemsetD32(memory, 77, 2));
	REQUIRE_EQUAL(at32(memory + 4), 77);

	CHECK(cuArrayCreate_v2(&array, &shape));
	CHECK(cuMemcpyDtoA(array, 4, memory, 4));
	CHECK(cuMemcpyAtoD(second, array, 4, 4));
	REQUIRE_EQUAL(at32(second), 77);
	planes(second);

	/* A kernel knows the same addresses. */
	{
		CUdeviceptr wide = second;
		unsigned value = 123;
		void *params[] = { &wide, &value };

		CHECK(cuLaunchKernel(store_kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		REQUIRE_EQUAL(at32(second), 123);
	}
	textures(memory, second);
	variables();
	CHECK(cuMemFree(memory));
	EXPECT(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemGetAddressRange(&base, &size, memory), CUDA_ERROR_NOT_FOUND);
	CHECK(cuMemFree(second));
	return 0;
}
