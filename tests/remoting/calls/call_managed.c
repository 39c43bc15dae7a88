/* Managed memory: allocated, attached, advised, prefetched, asked about, and as variables; used by two devices. */
#include "calls.h"

static const char variables[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .global .attribute(.managed) .align 4 .u32 shared_word = 11;\n"
".visible .global .align 4 .u32 own_word = 12;\n"
".visible .entry add()\n"
"{\n"
"	.reg .b32 %r<2>;\n"
"	ld.global.u32 %r1, [shared_word];\n"
"	add.u32 %r1, %r1, 100;\n"
"	st.global.u32 [shared_word], %r1;\n"
"	ret;\n"
"}\n";

static void store(CUfunction kernel, CUstream stream, CUdeviceptr address, unsigned value)
{
	void *parameters[] = { &address, &value };

	CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static volatile unsigned *here(CUdeviceptr address)
{
	return (volatile unsigned *)(uintptr_t)address;
}

static void allocations(CUstream stream)
{
	CUdeviceptr memory, base, host;
	CUfunction kernel = store_kernel();
	int managed, type;
	size_t bytes;

	EXPECT(cuMemAllocManaged(&memory, 4096, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocManaged(&memory, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemAllocManaged(&memory, 4000, CU_MEM_ATTACH_GLOBAL));
	for (unsigned set = 1; set + 1; set--) {
		unsigned told = 2;

		CHECK(cuPointerSetAttribute(&set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
		CHECK(cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
		REQUIRE_EQUAL(told, set);
	}
	CHECK(cuMemGetAddressRange_v2(&base, &bytes, memory + 3999));
	REQUIRE(base == memory && bytes == 4000);
	CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, memory));
	CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
	REQUIRE(managed && type == CU_MEMORYTYPE_DEVICE);
	*here(memory) = 1;
	*here(memory + 4) = 2;
	store(kernel, stream, memory, 5);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(*here(memory) == 5 && *here(memory + 4) == 2);
	/* The processor's from the beginning, until it is attached to a stream. */
	CHECK(cuMemAllocManaged(&host, 1 << 20, CU_MEM_ATTACH_HOST));
	*here(host) = 7;
	store(kernel, NULL, memory, 6);
	*here(host + 4) = 8;
	CHECK(cuStreamAttachMemAsync(stream, host, 0, CU_MEM_ATTACH_SINGLE));
	EXPECT(cuStreamAttachMemAsync(stream, host, 0, 3), CUDA_ERROR_INVALID_VALUE);
	store(kernel, stream, host, 9);
	CHECK(cuStreamSynchronize(stream));
	REQUIRE(*here(host) == 9 && *here(host + 4) == 8);
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(*here(memory), 6);
	EXPECT(cuMemFreeAsync(memory, stream), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFree_v2(memory));
	CHECK(cuMemFree_v2(host));
	EXPECT(cuMemFree_v2(memory), CUDA_ERROR_INVALID_VALUE);
}

static void hints(CUstream stream)
{
	const CUmemLocation first = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 };
	CUmemLocation places[2] = { first, { .type = CU_MEM_LOCATION_TYPE_HOST } };
	CUmem_range_attribute asked[2] = { CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
					   CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION };
	int mostly = 5, preferred = 5, prefetched, accessed[2];
	void *answers[2] = { &mostly, &preferred };
	size_t sizes[2] = { sizeof(int), sizeof(int) }, ranges[2] = { 8192, 8192 }, starts[2] = { 0, 1 };
	CUdeviceptr memory, parts[2];

	CHECK(cuMemAllocManaged(&memory, 16384, CU_MEM_ATTACH_GLOBAL));
	parts[0] = memory;
	parts[1] = memory + 8192;
	CHECK(cuMemRangeGetAttributes(answers, sizes, asked, 2, memory, 16384));
	REQUIRE(mostly == 0 && preferred == CU_DEVICE_INVALID);
	CHECK(cuMemAdvise(memory, 16384, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
	CHECK(cuMemAdvise_v2(memory, 16384, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, first));
	CHECK(cuMemAdvise_v2(memory, 16384, CU_MEM_ADVISE_SET_ACCESSED_BY, first));
	CHECK(cuMemRangeGetAttributes(answers, sizes, asked, 2, memory, 16384));
	REQUIRE(mostly == 1 && preferred == 0);
	CHECK(cuMemRangeGetAttribute(accessed, sizeof(accessed), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory,
				     16384));
	REQUIRE(accessed[0] == 0 && accessed[1] == CU_DEVICE_INVALID);
	/* Several may be said to access it. */
	CHECK(cuMemAdvise(memory, 16384, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
	CHECK(cuMemRangeGetAttribute(accessed, sizeof(accessed), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory,
				     16384));
	REQUIRE(accessed[0] == 0 && accessed[1] == CU_DEVICE_CPU);
	CHECK(cuMemAdvise(memory, 16384, CU_MEM_ADVISE_UNSET_ACCESSED_BY, 0));
	CHECK(cuMemRangeGetAttribute(accessed, sizeof(accessed), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory,
				     16384));
	REQUIRE(accessed[0] == CU_DEVICE_CPU && accessed[1] == CU_DEVICE_INVALID);
	CHECK(cuMemAdvise(memory, 16384, CU_MEM_ADVISE_UNSET_ACCESSED_BY, CU_DEVICE_CPU));
	CHECK(cuMemRangeGetAttribute(accessed, sizeof(accessed), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory,
				     16384));
	REQUIRE(accessed[0] == CU_DEVICE_INVALID && accessed[1] == CU_DEVICE_INVALID);
	EXPECT(cuMemAdvise(memory, 16384, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 99),
	       CUDA_ERROR_INVALID_DEVICE);
	EXPECT(cuMemAdvise(memory, 99999, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
	*here(memory) = 21;
	*here(memory + 8192) = 22;
	CHECK(cuMemPrefetchAsync(memory, 16384, 0, stream));
	CHECK(cuMemPrefetchAsync_v2(memory, 16384, places[1], 0, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuMemRangeGetAttribute(&prefetched, sizeof(int), CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
				     memory, 16384));
	REQUIRE_EQUAL(prefetched, CU_DEVICE_CPU);
	CHECK(cuMemPrefetchBatchAsync(parts, ranges, 2, places, starts, 2, 0, stream));
	EXPECT(cuMemPrefetchBatchAsync(parts, ranges, 2, places, starts, 3, 0, stream),
	       CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemDiscardBatchAsync(&parts[1], ranges, 1, 0, stream));
	CHECK(cuMemDiscardAndPrefetchBatchAsync(&parts[1], ranges, 1, places, starts, 1, 0, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(*here(memory), 21);
	REQUIRE_EQUAL(word_at(memory), 21);
	CHECK(cuMemFree_v2(memory));
}

static void of_a_module(void)
{
	CUdeviceptr shared, own;
	CUfunction kernel;
	int managed;
	CUmodule module;
	size_t bytes;

	CHECK(cuModuleLoadData(&module, variables));
	CHECK(cuModuleGetGlobal_v2(&shared, &bytes, module, "shared_word"));
	REQUIRE(bytes == 4 && *here(shared) == 11);
	CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, shared));
	REQUIRE(managed);
	CHECK(cuModuleGetGlobal_v2(&own, &bytes, module, "own_word"));
	CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, own));
	REQUIRE(!managed);
	*here(shared) += 1;
	CHECK(cuModuleGetFunction(&kernel, module, "add"));
	CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(*here(shared), 112);
	REQUIRE_EQUAL(word_at(own), 12);
	CHECK(cuModuleUnload(module));
}

static void of_a_library(void)
{
	CUlibrary library;
	CUdeviceptr shared;
	CUkernel kernel;
	size_t bytes;

	CHECK(cuLibraryLoadData(&library, variables, NULL, NULL, 0, NULL, NULL, 0));
	EXPECT(cuLibraryGetManaged(&shared, &bytes, library, "own_word"), CUDA_ERROR_NOT_FOUND);
	CHECK(cuLibraryGetManaged(&shared, &bytes, library, "shared_word"));
	REQUIRE(bytes == 4 && *here(shared) == 11);
	CHECK(cuLibraryGetKernel(&kernel, library, "add"));
	CHECK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(*here(shared), 111);
	CHECK(cuLibraryUnload(library));
}

/* What one device wrote the other one sees, and the processor sees both. */
static void of_two_devices(CUcontext first)
{
	CUdeviceptr memory;
	CUcontext second;
	CUmodule module;
	CUfunction kernel, other;

	kernel = store_kernel();
	CHECK(cuMemAllocManaged(&memory, 8192, CU_MEM_ATTACH_GLOBAL));
	CHECK(cuDevicePrimaryCtxRetain(&second, 1));
	*here(memory) = 1;
	*here(memory + 4) = 2;
	*here(memory + 4096) = 3;
	store(kernel, NULL, memory, 31);
	CHECK(cuCtxSynchronize());
	CHECK(cuCtxSetCurrent(second));
	CHECK(cuModuleLoadData(&module, code));
	CHECK(cuModuleGetFunction(&other, module, "store"));
	store(other, NULL, memory + 4096, 32);
	CHECK(cuCtxSynchronize());
	REQUIRE(*here(memory) == 31 && *here(memory + 4) == 2 && *here(memory + 4096) == 32);
	*here(memory + 4096) = 33;
	store(other, NULL, memory + 8, 34);
	CHECK(cuCtxSynchronize());
	REQUIRE(*here(memory + 8) == 34 && *here(memory + 4096) == 33);
	CHECK(cuCtxSetCurrent(first));
	CHECK(cuMemFree_v2(memory));
	CHECK(cuDevicePrimaryCtxRelease_v2(1));
}

/* A context takes its managed memory with it, and the addresses serve again. */
static void of_a_context(CUcontext first)
{
	CUdeviceptr memory;
	CUcontext context;

	for (int round = 0; round < 5; round++) {
		CHECK(cuCtxCreate_v2(&context, 0, 0));
		CHECK(cuMemAllocManaged(&memory, 3 << 20, CU_MEM_ATTACH_GLOBAL));
		*here(memory) = 1;
		CHECK(cuMemsetD32_v2(memory + 4, 8, 16));
		REQUIRE(*here(memory) == 1 && *here(memory + 64) == 8 && *here(memory + 68) == 0);
		CHECK(cuCtxDestroy_v2(context));
		CHECK(cuCtxSetCurrent(first));
	}
	CHECK(cuMemAllocManaged(&memory, 3 << 20, CU_MEM_ATTACH_GLOBAL));
	REQUIRE_EQUAL(*here(memory), 0);
	CHECK(cuMemFree_v2(memory));
}

int main(void)
{
	CUcontext first = begin();
	CUstream stream;

	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	allocations(stream);
	hints(stream);
	of_a_module();
	of_a_library();
	of_two_devices(first);
	of_a_context(first);
	CHECK(cuCtxSynchronize());
	return 0;
}
