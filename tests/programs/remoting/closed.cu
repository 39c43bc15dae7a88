// The driver's library is closed while it has a context, work and threads, and opened again by another thread.
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <dlfcn.h>
#include <thread>

#define EXPECT(truth)                                                                             \
	do {                                                                                      \
		if (!(truth)) {                                                                   \
			std::printf("line %d: not so: %s\n", __LINE__, #truth);                   \
			std::exit(1);                                                             \
		}                                                                                 \
	} while (0)

static CUcontext context;
static CUdeviceptr memory;

template <typename Function> static Function named(void *driver, const char *name)
{
	return reinterpret_cast<Function>(dlsym(driver, name));
}

#define CALL(function, ...) (named<decltype(&function)>(driver, #function)(__VA_ARGS__))

static void use(unsigned round)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	unsigned found = 0;

	EXPECT(driver);
	EXPECT(CALL(cuInit, 0) == CUDA_SUCCESS);
	if (!context)
		EXPECT(CALL(cuDevicePrimaryCtxRetain, &context, 0) == CUDA_SUCCESS);
	EXPECT(CALL(cuCtxSetCurrent, context) == CUDA_SUCCESS);
	if (!memory)
		EXPECT(named<CUresult (*)(CUdeviceptr *, size_t)>(driver, "cuMemAlloc_v2")(&memory, 4096) == CUDA_SUCCESS);
	if (round)
		EXPECT(named<CUresult (*)(void *, CUdeviceptr, size_t)>(driver, "cuMemcpyDtoH_v2")(&found, memory, 4) ==
			       CUDA_SUCCESS && found == round);
	EXPECT(named<CUresult (*)(CUdeviceptr, unsigned, size_t)>(driver, "cuMemsetD32_v2")(memory, round + 1, 1024) ==
	       CUDA_SUCCESS);
	EXPECT(dlclose(driver) == 0);
}

int main()
{
	for (unsigned round = 0; round < 20; round++)
		std::thread(use, round).join();
	std::printf("ok\n");
}
