/* No address is a multicast object's: multimem at one is an illegal address, and a kernel that has the
 * instruction for other devices runs. */
#include "driver.h"

static const char reduce[] =
".version 8.1\n"
".target sm_90\n"
".address_size 64\n"
".visible .entry reduce(.param .u64 pa, .param .u32 pmulti)\n"
"{\n"
"	.reg .pred %p<2>;\n"
"	.reg .b32 %r<3>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	ld.param.u32 %r1, [pmulti];\n"
"	setp.ne.u32 %p1, %r1, 0;\n"
"	mov.u32 %r2, 5;\n"
"	@%p1 multimem.ld_reduce.relaxed.sys.global.add.u32 %r2, [%rd1];\n"
"	@%p1 multimem.red.release.sys.global.add.u32 [%rd1], %r2;\n"
"	st.global.u32 [%rd1], %r2;\n"
"	ret;\n"
"}\n";

int main(void)
{
	unsigned multi = 0, seen = 0;
	CUdeviceptr word;
	void *params[] = { &word, &multi };
	CUfunction function;
	CUmodule module;

	begin();
	CHECK(cuModuleLoadData(&module, reduce));
	CHECK(cuModuleGetFunction(&function, module, "reduce"));
	CHECK(cuMemAlloc(&word, 4));
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	CHECK(cuMemcpyDtoH(&seen, word, 4));
	REQUIRE_EQUAL(seen, 5);
	multi = 1;
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}
