/* The linker: two texts become one image, from memory and from a file. */
#include "calls.h"

static const char user[] =
".version 7.0\n.target sm_75\n.address_size 64\n"
".extern .func (.param .b32 r) answer();\n"
".visible .entry ask(.param .u64 pa)\n"
"{\n"
"	.reg .b32 %r<2>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	{\n"
"	.param .b32 r0;\n"
"	call.uni (r0), answer;\n"
"	ld.param.b32 %r1, [r0];\n"
"	}\n"
"	st.global.u32 [%rd1], %r1;\n"
"	ret;\n"
"}\n";

static const char provider[] =
".version 7.0\n.target sm_75\n.address_size 64\n"
".visible .func (.param .b32 r) answer()\n"
"{\n"
"	.reg .b32 %r<2>;\n"
"	mov.u32 %r1, 42;\n"
"	st.param.b32 [r], %r1;\n"
"	ret;\n"
"}\n";

static void expect_answer(const void *image)
{
	CUdeviceptr word = words(1, 0);
	void *params[] = { &word };
	CUfunction ask;
	CUmodule module;

	CHECK(cuModuleLoadData(&module, image));
	CHECK(cuModuleGetFunction(&ask, module, "ask"));
	CHECK(cuLaunchKernel(ask, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	REQUIRE_EQUAL(word_at(word), 42);
	CHECK(cuModuleUnload(module));
	CHECK(cuMemFree_v2(word));
}

int main(void)
{
	char path[] = "/tmp/farbus-link-XXXXXX";
	int file = mkstemp(path);
	CUlinkState state;
	void *image, *again;
	size_t bytes;
	FILE *out;

	REQUIRE(file >= 0);
	out = fdopen(file, "w");
	REQUIRE(fwrite(provider, 1, sizeof(provider), out) == sizeof(provider) && !fclose(out));
	begin();
	CHECK(cuLinkCreate_v2(0, NULL, NULL, &state));
	CHECK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, (void *)user, sizeof(user), "user", 0, NULL, NULL));
	CHECK(cuLinkAddFile_v2(state, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
	CHECK(cuLinkComplete(state, &image, &bytes));
	REQUIRE(bytes > 0);
	/* What there is stays when there is no other. */
	EXPECT(cuLinkComplete(state, &again, NULL), CUDA_ERROR_INVALID_HANDLE);
	expect_answer(image);
	CHECK(cuLinkDestroy(state));
	EXPECT(cuLinkDestroy(state), CUDA_ERROR_INVALID_HANDLE);

	CHECK(cuLinkCreate(0, NULL, NULL, &state));
	CHECK(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)user, sizeof(user), "user", 0, NULL, NULL));
	CHECK(cuLinkAddFile(state, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
	CHECK(cuLinkComplete(state, &image, &bytes));
	expect_answer(image);
	CHECK(cuLinkDestroy(state));
	remove(path);
	return 0;
}
