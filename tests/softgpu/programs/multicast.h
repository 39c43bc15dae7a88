/* multicast.h - memory of devices, mapped for them, and kernels that reach it by a multicast object, beside
 * driver.h. */
#ifndef FARBUS_TESTS_SOFTGPU_MULTICAST_H
#define FARBUS_TESTS_SOFTGPU_MULTICAST_H

#define GRANULE (2ul << 20)
#define FILE_TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* sum_u32(multi, out): one u32;  sum_f32(multi, out): four;  sum_bf16(multi, out): eight, added as f32
 * store_f32(multi, value): four times;  add_u32(multi, value): in all memory
 * load_u32(multi, out): no multimem */
static const char multimem_kernels[] =
".version 8.1\n"
".target sm_90\n"
".address_size 64\n"
#define MULTIMEM_ENTRY(name, type, second, body)							\
	".visible .entry " name "(.param .u64 pa, .param ." type " pb)\n"				\
	"{\n"												\
	"	.reg .b32 %r<6>;\n"									\
	"	.reg .f32 %f<6>;\n"									\
	"	.reg .b64 %rd<3>;\n"									\
	"	ld.param.u64 %rd1, [pa];\n"								\
	"	ld.param." type " " second ", [pb];\n"							\
	body												\
	"	ret;\n"											\
	"}\n"
MULTIMEM_ENTRY("sum_u32", "u64", "%rd2",
"	multimem.ld_reduce.relaxed.sys.global.add.u32 %r1, [%rd1];\n"
"	st.global.u32 [%rd2], %r1;\n")
MULTIMEM_ENTRY("sum_f32", "u64", "%rd2",
"	multimem.ld_reduce.weak.global.add.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];\n"
"	st.global.v4.f32 [%rd2], {%f1, %f2, %f3, %f4};\n")
MULTIMEM_ENTRY("sum_bf16", "u64", "%rd2",
"	multimem.ld_reduce.acquire.gpu.global.add.acc::f32.v4.bf16x2 {%r1, %r2, %r3, %r4}, [%rd1];\n"
"	st.global.v4.b32 [%rd2], {%r1, %r2, %r3, %r4};\n")
MULTIMEM_ENTRY("store_f32", "f32", "%f1",
"	multimem.st.release.sys.global.v4.f32 [%rd1], {%f1, %f1, %f1, %f1};\n")
MULTIMEM_ENTRY("add_u32", "u32", "%r1",
"	multimem.red.release.sys.global.add.u32 [%rd1], %r1;\n")
MULTIMEM_ENTRY("load_u32", "u64", "%rd2",
"	ld.global.u32 %r1, [%rd1];\n"
"	st.global.u32 [%rd2], %r1;\n");

/* Of the current context. */
static inline CUfunction multimem_kernel(const char *name)
{
	CUfunction function;
	CUmodule module;

	CHECK(cuModuleLoadData(&module, multimem_kernels));
	CHECK(cuModuleGetFunction(&function, module, name));
	return function;
}

/* What it gives is that of the kernel. */
static inline CUresult multimem(const char *name, CUdeviceptr multi, const void *second)
{
	void *params[] = { &multi, (void *)second };

	CHECK(cuLaunchKernel(multimem_kernel(name), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	return cuCtxSynchronize();
}

static inline CUmemGenericAllocationHandle memory_of_device(CUdevice device, size_t size, bool shareable)
{
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
		.requestedHandleTypes = shareable ? FILE_TYPE : CU_MEM_HANDLE_TYPE_NONE,
	};
	CUmemGenericAllocationHandle memory;

	CHECK(cuMemCreate(&memory, size, &properties, 0));
	return memory;
}

/* Whatever it is: for one device. */
static inline CUdeviceptr map_for(CUdevice device, CUmemGenericAllocationHandle memory, size_t offset, size_t size)
{
	const CUmemAccessDesc open = { { CU_MEM_LOCATION_TYPE_DEVICE, device }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr base;

	CHECK(cuMemAddressReserve(&base, size, 0, 0, 0));
	CHECK(cuMemMap(base, size, offset, memory, 0));
	CHECK(cuMemSetAccess(base, size, &open, 1));
	return base;
}

#endif
