/* Modules, libraries, kernels and functions: found, counted, described, set. */
#include "calls.h"

static void expect_stores(CUfunction function, CUdeviceptr word, unsigned value)
{
	void *params[] = { &word, &value };

	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	REQUIRE_EQUAL(word_at(word), value);
}

static void test_module(CUdeviceptr word, const char *path)
{
	CUfunction function, all[2];
	CUmoduleLoadingMode mode;
	CUmodule module, owner;
	CUfunctionLoadingState state;
	CUdeviceptr counter;
	unsigned count;
	const char *name;
	size_t offset, bytes;
	int value;

	CHECK(cuModuleLoad(&module, path));
	CHECK(cuModuleGetFunctionCount(&count, module));
	REQUIRE_EQUAL(count, 1);
	CHECK(cuModuleEnumerateFunctions(all, 1, module));
	CHECK(cuModuleGetFunction(&function, module, "store"));
	CHECK(cuFuncGetName(&name, all[0]));
	REQUIRE(!strcmp(name, "store"));
	EXPECT(cuFuncGetName(&name, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuKernelGetName(&name, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuFuncGetModule(&owner, function));
	REQUIRE(owner == module);
	CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
	REQUIRE(value >= 32);
	CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 2048));
	CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
	REQUIRE_EQUAL(value, 2048);
	CHECK(cuFuncGetParamInfo(function, 1, &offset, &bytes));
	REQUIRE(offset == 8 && bytes == 4);
	EXPECT(cuFuncGetParamInfo(function, 2, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuFuncLoad(function));
	CHECK(cuFuncIsLoaded(&state, function));
	REQUIRE_EQUAL(state, CU_FUNCTION_LOADING_STATE_LOADED);
	CHECK(cuFuncSetCacheConfig(function, CU_FUNC_CACHE_PREFER_SHARED));
	CHECK(cuFuncSetSharedMemConfig(function, CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE));
	CHECK(cuModuleGetLoadingMode(&mode));
	REQUIRE_EQUAL(mode, CU_MODULE_LAZY_LOADING);
	CHECK(cuModuleGetGlobal_v2(&counter, &bytes, module, "counter"));
	REQUIRE_EQUAL(bytes, 4);
	REQUIRE_EQUAL(word_at(counter), 7);
	expect_stores(function, word, 11);
	CHECK(cuModuleUnload(module));
	{
		CUlinkState state;
		void *image;

		/* What the linker makes is loaded as fat binaries are. */
		CHECK(cuLinkCreate_v2(0, NULL, NULL, &state));
		CHECK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, (void *)code, sizeof(code), "code", 0, NULL,
				       NULL));
		CHECK(cuLinkComplete(state, &image, &bytes));
		CHECK(cuModuleLoadFatBinary(&module, image));
		CHECK(cuModuleGetFunction(&function, module, "store"));
		expect_stores(function, word, 16);
		CHECK(cuModuleUnload(module));
		CHECK(cuLinkDestroy(state));
	}
	CHECK(cuModuleLoadDataEx(&module, code, 0, NULL, NULL));
	CHECK(cuModuleGetFunction(&function, module, "store"));
	expect_stores(function, word, 12);
	CHECK(cuModuleUnload(module));
}

static void test_library(CUdeviceptr word, const char *path)
{
	CUlibrary library, owner, again;
	CUkernel kernel, all[2];
	CUfunction function;
	CUmodule module;
	CUdeviceptr counter;
	const char *name;
	size_t offset, bytes;
	unsigned count;
	int value;

	CHECK(cuLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cuLibraryGetKernelCount(&count, library));
	REQUIRE_EQUAL(count, 1);
	CHECK(cuLibraryEnumerateKernels(all, 1, library));
	CHECK(cuLibraryGetKernel(&kernel, library, "store"));
	REQUIRE(all[0] == kernel);
	CHECK(cuKernelGetName(&name, kernel));
	REQUIRE(!strcmp(name, "store"));
	CHECK(cuKernelGetLibrary(&owner, kernel));
	REQUIRE(owner == library);
	CHECK(cuKernelGetParamInfo(kernel, 1, &offset, &bytes));
	REQUIRE(offset == 8 && bytes == 4);
	CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024, kernel, 0));
	CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0));
	REQUIRE_EQUAL(value, 1024);
	CHECK(cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_L1, 0));
	CHECK(cuLibraryGetGlobal(&counter, &bytes, library, "counter"));
	REQUIRE_EQUAL(word_at(counter), 7);
	CHECK(cuKernelGetFunction(&function, kernel));
	expect_stores(function, word, 13);
	CHECK(cuLibraryGetModule(&module, library));
	CHECK(cuModuleGetFunction(&function, module, "store"));
	expect_stores(function, word, 14);
	CHECK(cuLibraryLoadFromFile(&again, path, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cuLibraryUnload(again));
	CHECK(cuLibraryUnload(library));
	EXPECT(cuLibraryGetKernel(&kernel, library, "store"), CUDA_ERROR_INVALID_HANDLE);
}

static void test_occupancy(CUdeviceptr word)
{
	CUlaunchConfig config = { .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32,
				  .blockDimY = 1, .blockDimZ = 1 };
	CUfunction function = store_kernel();
	unsigned value = 15;
	void *params[] = { &word, &value };
	int blocks, flagged, grid, block;
	size_t bytes;

	CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 64, 0));
	REQUIRE(blocks > 0);
	CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&flagged, function, 64, 0, 0));
	REQUIRE_EQUAL(blocks, flagged);
	CHECK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, NULL, 0, 0));
	REQUIRE(grid > 0 && block > 0);
	CHECK(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, function, NULL, 0, 0, 0));
	CHECK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, 1, 64));
	REQUIRE(bytes > 0);
	CHECK(cuLaunchKernelEx(&config, function, params, NULL));
	REQUIRE_EQUAL(word_at(word), 15);
	{
		CUlaunchAttribute cluster = { .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
					      .value.clusterDim = { 2, 1, 1 } };
		int clusters = 0, size = 0;

		config.gridDimX = 4;
		CHECK(cuOccupancyMaxPotentialClusterSize(&size, function, &config));
		REQUIRE(size >= 2);
		config.attrs = &cluster;
		config.numAttrs = 1;
		CHECK(cuOccupancyMaxActiveClusters(&clusters, function, &config));
		REQUIRE(clusters >= 1);
	}
}

int main(void)
{
	char path[] = "/tmp/farbus-code-XXXXXX";
	int file = mkstemp(path);
	CUdeviceptr word;
	FILE *out;

	REQUIRE(file >= 0);
	out = fdopen(file, "w");
	REQUIRE(fwrite(code, 1, sizeof(code), out) == sizeof(code) && !fclose(out));
	begin();
	word = words(1, 0);
	test_module(word, path);
	test_library(word, path);
	test_occupancy(word);
	remove(path);
	return 0;
}
