/* An mbarrier that was ended is as it was, as hardware has it: ended once more, or arrived at by who is late. */
#include "driver.h"

static char text[] =
	".version 8.0\n.target sm_90\n.address_size 64\n"
	".shared .align 8 .b64 barrier;\n"
	".visible .entry twice(.param .u64 out)\n{\n"
	"	.reg .b32 %r<3>;\n	.reg .b64 %rd<2>;\n"
	"	mov.u32 %r1, barrier;\n"
	"	mbarrier.init.shared.b64 [%r1], 1;\n"
	"	mbarrier.inval.shared.b64 [%r1];\n"
	"	mbarrier.inval.shared.b64 [%r1];\n"
	"	mbarrier.arrive.shared.b64 %rd1, [%r1];\n"
	"	ld.param.u64 %rd1, [out];\n"
	"	mov.u32 %r2, 7;\n"
	"	st.global.u32 [%rd1], %r2;\n"
	"	ret;\n}\n";

int main(void)
{
	CUfunction twice;
	CUdeviceptr word;
	CUmodule module;
	void *parameters[] = { &word };
	unsigned value;

	begin();
	CHECK(cuModuleLoadData(&module, text));
	CHECK(cuModuleGetFunction(&twice, module, "twice"));
	CHECK(cuMemAlloc(&word, 4));
	CHECK(cuLaunchKernel(twice, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	CHECK(cuMemcpyDtoH(&value, word, 4));
	REQUIRE_EQUAL(value, 7);
	return 0;
}
