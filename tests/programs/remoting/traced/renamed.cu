// Launches the one kernel of a library, whatever the server calls it.
#include "../check.h"

#include <cuda.h>
#include <dlfcn.h>

static const char ptx[] = R"(
.version 6.4
.target sm_50
.address_size 64
.visible .entry name_of_one_word() { ret; }
)";

static void driver(CUresult result)
{
	if (result != CUDA_SUCCESS)
		FAIL("a call of the driver ended with %d", (int)result);
}

int main()
{
	void *libcuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!libcuda)
		FAIL("%s", dlerror());
	auto *load = (decltype(cuLibraryLoadData) *)dlsym(libcuda, "cuLibraryLoadData");
	auto *list = (decltype(cuLibraryEnumerateKernels) *)dlsym(libcuda, "cuLibraryEnumerateKernels");
	auto *launch = (decltype(cuLaunchKernel) *)dlsym(libcuda, "cuLaunchKernel");
	CUlibrary library;
	CUkernel kernel;

	CUDA(cudaFree(nullptr));
	driver(load(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
	driver(list(&kernel, 1, library));
	driver(launch((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
	CUDA(cudaDeviceSynchronize());
	return passed();
}
