/* Shared variables of functions that are called: they have places of their own, beside the kernel's, and a kernel
 * counts those that it and what it calls uses. */
#include "driver.h"

static char text[] =
	".version 8.0\n.target sm_75\n.address_size 64\n"
	".shared .align 4 .b8 everybodys[64];\n"
	".func fills();\n"
	".func other();\n"
	".visible .entry calls(.param .u64 out)\n{\n"
	"	.reg .b32 %r<4>;\n	.reg .b64 %rd<2>;\n"
	"	.shared .align 4 .b8 own[256];\n"
	"	mov.u32 %r1, 7;\n"
	"	st.shared.u32 [own], %r1;\n"
	"	st.shared.u32 [own+128], %r1;\n"
	"	call fills, ();\n"
	"	ld.shared.u32 %r2, [own];\n"
	"	ld.shared.u32 %r3, [own+128];\n"
	"	add.u32 %r3, %r3, %r2;\n"
	"	ld.param.u64 %rd1, [out];\n"
	"	st.global.u32 [%rd1], %r3;\n"
	"	ret;\n}\n"
	".func fills()\n{\n"
	"	.reg .b32 %r<2>;\n"
	"	.shared .align 4 .b8 its[512];\n"
	"	mov.u32 %r1, 1;\n"
	"	st.shared.u32 [its], %r1;\n"
	"	st.shared.u32 [its+128], %r1;\n"
	"	st.shared.u32 [its+508], %r1;\n"
	"	st.shared.u32 [everybodys], %r1;\n"
	"	ret;\n}\n"
	".func other()\n{\n"
	"	.reg .b32 %r<2>;\n"
	"	.shared .align 4 .b8 more[4096];\n"
	"	mov.u32 %r1, 1;\n"
	"	st.shared.u32 [more+4092], %r1;\n"
	"	call fills, ();\n"
	"	ret;\n}\n"
	".visible .entry calls_both()\n{\n"
	"	call other, ();\n"
	"	call fills, ();\n"
	"	ret;\n}\n"
	".visible .entry calls_none()\n{\n"
	"	ret;\n}\n";

static CUmodule module;

static CUfunction named(const char *name, int shared_bytes)
{
	CUfunction function;
	int value;

	CHECK(cuModuleGetFunction(&function, module, name));
	CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function));
	REQUIRE_EQUAL(value, shared_bytes);
	return function;
}

int main(void)
{
	CUdeviceptr word;
	void *parameters[] = { &word };
	unsigned value;

	begin();
	CHECK(cuModuleLoadData(&module, text));
	CHECK(cuMemAlloc(&word, 4));
	CHECK(cuLaunchKernel(named("calls", 256 + 512 + 64), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	CHECK(cuMemcpyDtoH(&value, word, 4));
	REQUIRE_EQUAL(value, 14);
	CHECK(cuLaunchKernel(named("calls_both", 4096 + 512 + 64), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	CHECK(cuLaunchKernel(named("calls_none", 0), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	CHECK(cuCtxSynchronize());
	return 0;
}
