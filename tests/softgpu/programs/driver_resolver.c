/* cuGetProcAddress: the newest variant that is not newer than asked for. */
#include "driver.h"

#include <dlfcn.h>

static void *find(const char *name, int version, cuuint64_t flags)
{
	CUdriverProcAddressQueryResult status;
	void *entry;

	CHECK(cuGetProcAddress(name, &entry, version, flags, &status));
	REQUIRE_EQUAL(status, CU_GET_PROC_ADDRESS_SUCCESS);
	REQUIRE(entry);
	return entry;
}

static void *symbol(const char *name)
{
	void *entry = dlsym(RTLD_DEFAULT, name);

	REQUIRE(entry);
	return entry;
}

int main(void)
{
	CUdriverProcAddressQueryResult status;
	void *entry = &entry;

	REQUIRE(find("cuCtxSynchronize", 2000, 0) == symbol("cuCtxSynchronize"));
	REQUIRE(find("cuCtxSynchronize", 12090, 0) == symbol("cuCtxSynchronize"));
	REQUIRE(find("cuCtxSynchronize", 13000, 0) == symbol("cuCtxSynchronize_v2"));
	REQUIRE(find("cuCtxCreate", 4000, 0) == symbol("cuCtxCreate_v2"));
	REQUIRE(find("cuCtxCreate", 13020, 0) == symbol("cuCtxCreate_v4"));
	REQUIRE(find("cuMemAlloc", 3020, 0) == symbol("cuMemAlloc_v2"));
	REQUIRE(find("cuLaunchKernel", 4000, 0) == symbol("cuLaunchKernel"));
	REQUIRE(find("cuLaunchKernel", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ==
		symbol("cuLaunchKernel_ptsz"));
	REQUIRE(find("cuMemcpyHtoD", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ==
		symbol("cuMemcpyHtoD_v2_ptds"));
	REQUIRE(find("cuMemAlloc", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ==
		symbol("cuMemAlloc_v2"));
	REQUIRE(find("cuGetProcAddress", 11030, 0) == symbol("cuGetProcAddress"));
	REQUIRE(find("cuGetProcAddress", 12000, 0) == symbol("cuGetProcAddress_v2"));
	REQUIRE(find("cuStreamWaitValue32", 8000, 0) == symbol("cuStreamWaitValue32"));
	REQUIRE(find("cuStreamWaitValue32", 12000, 0) == symbol("cuStreamWaitValue32_v2"));
	REQUIRE(find("cuStreamWriteValue64", 9000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ==
		symbol("cuStreamWriteValue64_ptsz"));
	REQUIRE(symbol("cuStreamBatchMemOp") && symbol("cuStreamBatchMemOp_ptsz"));
	REQUIRE(find("cuMulticastCreate", 12010, 0) == symbol("cuMulticastCreate"));
	EXPECT(cuGetProcAddress("cuMemAlloc", &entry, 2000, 0, &status), CUDA_ERROR_NOT_FOUND);
	REQUIRE_EQUAL(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	REQUIRE(!entry);
	EXPECT(cuGetProcAddress("cuNoSuchThing", &entry, 13000, 0, &status),
	       CUDA_ERROR_NOT_FOUND);
	REQUIRE_EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	EXPECT(cuGetProcAddress("", &entry, 0, 0, NULL), CUDA_ERROR_NOT_FOUND);
	EXPECT(cuGetProcAddress("cuInit", &entry, 2000, 1ull << 40, NULL),
	       CUDA_ERROR_INVALID_VALUE);
	return 0;
}
