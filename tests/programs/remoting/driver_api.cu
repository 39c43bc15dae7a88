// The driver API by dlopen: modules from PTX, contexts, both ways of passing parameters.
#include "check.h"

#include <cuda.h>
#include <dlfcn.h>

static const char ptx[] = R"(
.version 6.4
.target sm_50
.address_size 64
.visible .global .align 4 .u32 answer = 42;
.visible .entry store(.param .u64 to, .param .u32 value)
{
	.reg .u64 %rd<2>;
	.reg .u32 %r<2>;
	ld.param.u64 %rd1, [to];
	ld.param.u32 %r1, [value];
	st.global.u32 [%rd1], %r1;
	ret;
}
)";

#define DRIVER(call)                                                                     \
	do {                                                                             \
		const CUresult result_ = (call);                                         \
		if (result_ != CUDA_SUCCESS)                                             \
			FAIL("%s: %d", #call, (int)result_);                             \
	} while (0)

template <typename Function> static Function *find(void *library, const char *name)
{
	void *found = dlsym(library, name);
	if (!found)
		FAIL("%s is not there", name);
	return reinterpret_cast<Function *>(found);
}

#define LOAD(name) auto *name##_ = find<decltype(name)>(library, #name)
#define LOAD_V2(name) auto *name##_ = find<decltype(name)>(library, #name "_v2")

int main()
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		FAIL("%s", dlerror());
	LOAD(cuInit);
	LOAD(cuDeviceGet);
	LOAD_V2(cuCtxDestroy);
	LOAD(cuModuleLoadData);
	LOAD(cuModuleGetFunction);
	LOAD_V2(cuModuleGetGlobal);
	LOAD(cuModuleUnload);
	LOAD_V2(cuMemAlloc);
	LOAD_V2(cuMemcpyDtoH);
	LOAD(cuLaunchKernel);
	LOAD(cuCtxGetCurrent);
	auto *create = find<CUresult(CUcontext *, unsigned, CUdevice)>(library, "cuCtxCreate_v2");

	CUdevice device;
	CUcontext context, current;
	CUmodule module;
	CUfunction function, absent;
	CUdeviceptr memory, global;
	size_t bytes;
	unsigned value = 7, result = 0;

	EXPECT(cuCtxGetCurrent_(&current) == CUDA_ERROR_NOT_INITIALIZED);
	DRIVER(cuInit_(0));
	DRIVER(cuDeviceGet_(&device, 0));
	EXPECT(cuMemAlloc_(&memory, 4) == CUDA_ERROR_INVALID_CONTEXT);
	DRIVER(create(&context, 0, device));
	DRIVER(cuCtxGetCurrent_(&current));
	EXPECT(current == context);
	DRIVER(cuModuleLoadData_(&module, ptx));
	DRIVER(cuModuleGetFunction_(&function, module, "store"));
	absent = function;
	EXPECT(cuModuleGetFunction_(&absent, module, "absent") == CUDA_ERROR_NOT_FOUND);
	EXPECT(!absent);
	DRIVER(cuModuleGetGlobal_(&global, &bytes, module, "answer"));
	EXPECT(bytes == 4);
	DRIVER(cuMemcpyDtoH_(&result, global, 4));
	EXPECT(result == 42);
	DRIVER(cuMemAlloc_(&memory, 4));

	void *parameters[] = {&memory, &value};
	DRIVER(cuLaunchKernel_(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
	DRIVER(cuMemcpyDtoH_(&result, memory, 4));
	EXPECT(result == 7);

	struct {
		CUdeviceptr to;
		unsigned value;
	} buffer = {memory, 8};
	size_t size = sizeof buffer.to + sizeof buffer.value;	// without the padding at the end
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
			 CU_LAUNCH_PARAM_END};
	DRIVER(cuLaunchKernel_(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
	DRIVER(cuMemcpyDtoH_(&result, memory, 4));
	EXPECT(result == 8);

	EXPECT(cuModuleLoadData_(&module, "not PTX") != CUDA_SUCCESS);
	EXPECT(cuLaunchKernel_((CUfunction)0x1230, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr) ==
	       CUDA_ERROR_INVALID_HANDLE);
	DRIVER(cuCtxDestroy_(context));
	EXPECT(cuMemAlloc_(&memory, 4) == CUDA_ERROR_INVALID_CONTEXT);
	return passed();
}
