/* Who waits for a stream again and again, into which nothing is put any more, hears what has gone wrong in another. */
#include "calls.h"

/* fault(flag): store to where nothing is, once the word at `flag` is not zero */
static const char fault_code[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry fault(.param .u64 pflag)\n"
"{\n"
"	.reg .pred %p<2>;\n"
"	.reg .b32 %r<2>;\n"
"	.reg .b64 %rd<3>;\n"
"	ld.param.u64 %rd1, [pflag];\n"
"look:\n"
"	ld.volatile.global.u32 %r1, [%rd1];\n"
"	setp.eq.u32 %p1, %r1, 0;\n"
"	@%p1 bra look;\n"
"	mov.u64 %rd2, 16;\n"
"	st.global.u32 [%rd2], %r1;\n"
"	ret;\n"
"}\n";

int main(void)
{
	unsigned go = 1, word = 5;
	CUstream faulty, stream;
	CUdeviceptr flag, other;
	CUfunction fault;
	CUmodule module;
	CUresult result;

	begin();
	CHECK(cuModuleLoadData(&module, fault_code));
	CHECK(cuModuleGetFunction(&fault, module, "fault"));
	CHECK(cuStreamCreate(&faulty, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	flag = words(1, 0);
	other = words(1, 0);
	CHECK(cuCtxSynchronize());
	CHECK(cuLaunchKernel(fault, 1, 1, 1, 1, 1, 1, 0, faulty, (void *[]){ &flag }, NULL));
	for (unsigned i = 0; i < 3; i++) {
		CHECK(cuMemcpyHtoDAsync_v2(other, &word, sizeof(word), stream));
		CHECK(cuStreamSynchronize(stream));
	}
	result = cuMemcpyHtoDAsync_v2(flag, &go, sizeof(go), stream);
	while (result == CUDA_SUCCESS)
		result = cuStreamSynchronize(stream);
	REQUIRE_EQUAL(result, CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}
