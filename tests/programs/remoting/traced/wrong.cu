// Calls that fail, with pointers behind which there is nothing where the call itself does not look either.
#include "../check.h"

#include <cstdint>
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <sys/wait.h>

static void *library;

template <typename Function> static Function *find(const char *name)
{
	void *found = dlsym(library, name);
	if (!found)
		FAIL("%s is not there", name);
	return reinterpret_cast<Function *>(found);
}

template <typename Type> static Type *nowhere()
{
	return reinterpret_cast<Type *>(uintptr_t(64));
}

int main()
{
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		FAIL("%s", dlerror());
	auto *launch = find<decltype(cuLaunchKernel)>("cuLaunchKernel");
	auto *launch_ex = find<decltype(cuLaunchKernelEx)>("cuLaunchKernelEx");
	auto *batch = find<CUresult(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, void *, CUstream)>(
		"cuMemcpyBatchAsync_v2");
	auto *load = find<decltype(cuModuleLoadData)>("cuModuleLoadData");
	auto *load_library = find<decltype(cuLibraryLoadData)>("cuLibraryLoadData");
	auto *allocate = find<CUresult(CUdeviceptr *, size_t)>("cuMemAlloc_v2");
	auto *allocate_rows = find<CUresult(CUdeviceptr *, size_t *, size_t, size_t, unsigned)>("cuMemAllocPitch_v2");
	auto *copy_there = find<CUresult(CUdeviceptr, const void *, size_t)>("cuMemcpyHtoD_v2");
	auto *copy_box = find<CUresult(const CUDA_MEMCPY3D *)>("cuMemcpy3D_v2");
	auto *copy_rows = find<CUresult(const CUDA_MEMCPY2D *)>("cuMemcpy2D_v2");
	const CUfunction no_functions[] = { nullptr, (CUfunction)nowhere<void>(), (CUfunction)~uintptr_t(0),
					    (CUfunction)(uintptr_t(1) << 43 | 16) };
	CUdeviceptr device;
	size_t pitch;
	char byte = 1;

	// Before cuInit.
	for (CUfunction function : no_functions)
		EXPECT(launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_NOT_INITIALIZED);
	EXPECT(batch(nowhere<CUdeviceptr>(), nowhere<CUdeviceptr>(), nowhere<size_t>(), 5, nullptr, nullptr, 0, nullptr,
		     nullptr) == CUDA_ERROR_NOT_INITIALIZED);
	EXPECT(load(nowhere<CUmodule>(), nowhere<void>()) == CUDA_ERROR_NOT_INITIALIZED);
	EXPECT(load_library(nowhere<CUlibrary>(), nowhere<void>(), nullptr, nullptr, 0, nullptr, nullptr, 0) ==
	       CUDA_ERROR_NOT_INITIALIZED);
	EXPECT(copy_there(64, nowhere<void>(), 10) == CUDA_ERROR_NOT_INITIALIZED);

	CUDA(cudaFree(nullptr));
	for (CUfunction function : no_functions)
		EXPECT(launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_HANDLE);
	EXPECT(launch_ex(nullptr, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(copy_box(nullptr) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(copy_rows(nullptr) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(copy_there(64, &byte, 11) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(load(nullptr, "") == CUDA_ERROR_INVALID_VALUE);
	EXPECT(load(nowhere<CUmodule>(), nullptr) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(allocate(&device, 1ull << 60) == CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT(allocate(nullptr, 12) == CUDA_ERROR_INVALID_VALUE);
	// More bytes than there are numbers for.
	EXPECT(allocate_rows(&device, &pitch, 1ull << 40, 1ull << 40, 4) != CUDA_SUCCESS);

	// In the child of a fork.
	const pid_t child = fork();
	if (!child) {
		bool refused = launch(no_functions[3], 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) != CUDA_SUCCESS &&
			       copy_there(64, &byte, 13) != CUDA_SUCCESS;
		_exit(refused ? 0 : 1);
	}
	int status;
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	return passed();
}
