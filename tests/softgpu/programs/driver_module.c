/* Modules: names, variables, parameters, errors, and what unloading ends. */
#include "driver.h"

int main(void)
{
	char log[256] = "untouched";
	CUjit_option options[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
	void *values[] = { log, (void *)sizeof log };
	CUmodule module, other;
	CUfunction function;
	CUdeviceptr counter, separate;
	size_t offset, bytes;
	unsigned value;

	begin();
	CHECK(cuModuleLoadData(&module, kernels));
	CHECK(cuModuleLoadData(&other, kernels));
	EXPECT(cuModuleGetFunction(&function, module, "nothing"), CUDA_ERROR_NOT_FOUND);
	CHECK(cuModuleGetFunction(&function, module, "vector_add"));
	CHECK(cuFuncGetParamInfo(function, 3, &offset, &bytes));
	REQUIRE_EQUAL(offset, 24);
	REQUIRE_EQUAL(bytes, 4);
	EXPECT(cuFuncGetParamInfo(function, 4, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);

	CHECK(cuModuleGetGlobal(&counter, &bytes, module, "counter"));
	REQUIRE_EQUAL(bytes, 4);
	CHECK(cuMemcpyDtoH(&value, counter, 4));
	REQUIRE_EQUAL(value, 7);
	/* Each load has variables of its own. */
	CHECK(cuModuleGetGlobal(&separate, NULL, other, "counter"));
	REQUIRE(separate != counter);
	CHECK(cuMemsetD32(counter, 8, 1));
	CHECK(cuMemcpyDtoH(&value, separate, 4));
	REQUIRE_EQUAL(value, 7);
	EXPECT(cuMemFree(counter), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuModuleGetGlobal(&counter, &bytes, module, "nothing"), CUDA_ERROR_NOT_FOUND);

	CHECK(cuModuleUnload(module));
	EXPECT(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
	       CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuModuleLoadDataEx(&module, ".version 7.0\n.target sm_75\n.address_size 64\n"
				  ".visible .entry bad()\n{\n\tnot an instruction\n", 2,
				  options, values), CUDA_ERROR_INVALID_PTX);
	REQUIRE(strcmp(log, "untouched"));
	/* Tile IR without a section but its end, as libraries of CUDA 13.1 and newer load it for new devices. */
	EXPECT(cuModuleLoadData(&module, "\177TileIR\0\15\1\0\0\0"), CUDA_ERROR_NO_BINARY_FOR_GPU);
	return 0;
}
