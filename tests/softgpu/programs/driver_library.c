/* softgpu: count=2
 * A library serves every context; a kernel goes where a function does. */
#include "driver.h"

static void run_on(CUdevice device, CUkernel kernel, CUlibrary library)
{
	CUdeviceptr word, counter;
	CUcontext context;
	unsigned value;

	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuMemAlloc(&word, 4));
	CHECK(launch_store((CUfunction)kernel, word, 40 + (unsigned)device, NULL));
	CHECK(cuMemcpyDtoH(&value, word, 4));
	REQUIRE_EQUAL(value, 40 + device);
	CHECK(cuLibraryGetGlobal(&counter, NULL, library, "counter"));
	CHECK(cuMemcpyDtoH(&value, counter, 4));
	REQUIRE_EQUAL(value, 7);
	CHECK(cuMemsetD32(counter, 99, 1));
}

int main(void)
{
	char *image = strdup(kernels);
	CUfunction function;
	CUlibrary library;
	CUkernel store, missing;
	unsigned count;
	size_t offset, bytes;
	int value;

	CHECK(cuInit(0));
	CHECK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	/* The program's copy is its own again. */
	memset(image, 'x', strlen(image));
	free(image);
	CHECK(cuLibraryGetKernelCount(&count, library));
	REQUIRE_EQUAL(count, 4);
	CHECK(cuLibraryGetKernel(&store, library, "store"));
	EXPECT(cuLibraryGetKernel(&missing, library, "nothing"), CUDA_ERROR_NOT_FOUND);
	CHECK(cuKernelGetParamInfo(store, 1, &offset, &bytes));
	REQUIRE_EQUAL(offset, 8);
	CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1000, store, 1));
	run_on(0, store, library);
	run_on(1, store, library);
	CHECK(cuKernelGetFunction(&function, store));
	CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
	REQUIRE_EQUAL(value, 1000);
	CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, store,
				   0));
	REQUIRE_EQUAL(value, 49152);
	CHECK(cuLibraryUnload(library));
	EXPECT(cuLibraryUnload(library), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(launch_store((CUfunction)store, 0, 0, NULL), CUDA_ERROR_INVALID_HANDLE);
	return 0;
}
