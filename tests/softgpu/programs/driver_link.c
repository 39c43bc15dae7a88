/* PTX is linked at run time, and mistakes are told where the options say. */
#include "driver.h"

#include <stdint.h>

typedef struct CUlinkState_st *CUlinkState;

CUresult cuLinkCreate_v2(unsigned int, CUjit_option *, void **, CUlinkState *);
CUresult cuLinkAddData_v2(CUlinkState, CUjitInputType, void *, size_t, const char *, unsigned int,
			  CUjit_option *, void **);
CUresult cuLinkAddFile_v2(CUlinkState, CUjitInputType, const char *, unsigned int, CUjit_option *,
			  void **);
CUresult cuLinkComplete(CUlinkState, void **, size_t *);
CUresult cuLinkDestroy(CUlinkState);
CUresult cuModuleLoad(CUmodule *, const char *);

#define HEADER ".version 7.0\n.target sm_75\n.address_size 64\n"
#define LOG_BYTES 512

static char user[] = HEADER
".extern .func (.param .b32 result) twice(.param .b32 value);\n"
".extern .global .align 4 .u32 offset;\n"
".visible .entry run(.param .u64 pa)\n{\n"
"	.reg .b32 %r<4>;\n	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	{\n	.param .b32 a;\n	.param .b32 b;\n	st.param.b32 [a], 21;\n"
"	call.uni (b), twice, (a);\n	ld.param.b32 %r1, [b];\n	}\n"
"	ld.global.u32 %r2, [offset];\n	add.u32 %r3, %r1, %r2;\n"
"	st.global.u32 [%rd1], %r3;\n	ret;\n}\n";
static char provider[] = HEADER
".visible .global .align 4 .u32 offset = 5;\n"
".visible .func (.param .b32 result) twice(.param .b32 value)\n{\n"
"	.reg .b32 %r<3>;\n	ld.param.b32 %r1, [value];\n	add.u32 %r2, %r1, %r1;\n"
"	st.param.b32 [result], %r2;\n	ret;\n}\n";
static char broken[] = HEADER
".visible .entry run()\n{\n	.reg .b32 %r<2>;\n	add.u32 %r1, unknown, 1;\n	ret;\n}\n";

static CUresult add(CUlinkState state, char *text)
{
	return cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, text, strlen(text) + 1, "input.ptx", 0,
				NULL, NULL);
}

static void expect_runs(CUmodule module)
{
	CUdeviceptr address;
	CUfunction function;
	void *params[] = { &address };
	unsigned value;

	CHECK(cuMemAlloc(&address, 4));
	CHECK(cuModuleGetFunction(&function, module, "run"));
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	CHECK(cuMemcpyDtoH(&value, address, 4));
	REQUIRE_EQUAL(value, 47);
	CHECK(cuMemFree(address));
	CHECK(cuModuleUnload(module));
}

static void write_file(const char *path, const void *data, size_t bytes)
{
	FILE *file = fopen(path, "wb");

	REQUIRE(file);
	REQUIRE(fwrite(data, 1, bytes, file) == bytes);
	REQUIRE(!fclose(file));
}

/* What was linked can be loaded as often as one likes, also later from a file. */
static void link_two_texts(void)
{
	char path[] = "/tmp/softgpu-link-XXXXXX";
	CUlinkState state;
	CUlibrary library;
	CUmodule module;
	CUkernel loaded;
	void *image, *again;
	size_t bytes;

	REQUIRE(mkstemp(path) >= 0);
	CHECK(cuLinkCreate_v2(0, NULL, NULL, &state));
	CHECK(add(state, user));
	write_file(path, provider, strlen(provider));
	CHECK(cuLinkAddFile_v2(state, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
	EXPECT(cuLinkAddFile_v2(state, CU_JIT_INPUT_PTX, "/nowhere.ptx", 0, NULL, NULL),
	       CUDA_ERROR_FILE_NOT_FOUND);
	CHECK(cuLinkComplete(state, &image, &bytes));
	EXPECT(cuLinkComplete(state, &again, NULL), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(add(state, provider), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuModuleLoadData(&module, image));
	expect_runs(module);
	CHECK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	write_file(path, image, bytes);
	CHECK(cuLinkDestroy(state));
	EXPECT(cuLinkDestroy(state), CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuModuleLoad(&module, path));
	expect_runs(module);
	CHECK(cuLibraryGetKernel(&loaded, library, "run"));
	CHECK(cuLibraryUnload(library));

	/* And it is an input like others; half of one is none. */
	CHECK(cuLinkCreate_v2(0, NULL, NULL, &state));
	CHECK(cuLinkAddFile_v2(state, CU_JIT_INPUT_CUBIN, path, 0, NULL, NULL));
	CHECK(cuLinkComplete(state, &image, &bytes));
	CHECK(cuModuleLoadData(&module, image));
	expect_runs(module);
	write_file(path, image, bytes / 2);
	EXPECT(cuModuleLoad(&module, path), CUDA_ERROR_INVALID_IMAGE);
	CHECK(cuLinkDestroy(state));
	unlink(path);
}

static void tell_mistakes(void)
{
	char errors[LOG_BYTES], information[LOG_BYTES];
	CUjit_option options[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
				   CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES };
	void *values[] = { errors, (void *)(uintptr_t)LOG_BYTES, information,
			   (void *)(uintptr_t)LOG_BYTES };
	CUlinkState state;
	CUmodule module;
	void *image;

	memset(errors, 'x', sizeof(errors));
	memset(information, 'x', sizeof(information));
	CHECK(cuLinkCreate_v2(4, options, values, &state));
	EXPECT(add(state, broken), CUDA_ERROR_INVALID_PTX);
	REQUIRE(strstr(errors, "input.ptx") && strstr(errors, "unknown"));
	REQUIRE_EQUAL((uintptr_t)values[1], strlen(errors));
	REQUIRE_EQUAL((uintptr_t)values[3], 0);
	REQUIRE_EQUAL(information[0], 0);

	/* What was refused was not added; what nobody has is missed in the end.  The log has the room that it
	 * had, though its size says since the first call what is in it. */
	CHECK(add(state, user));
	REQUIRE_EQUAL((uintptr_t)values[1], 0);
	EXPECT(cuLinkComplete(state, &image, NULL), CUDA_ERROR_INVALID_PTX);
	REQUIRE(strstr(errors, "twice"));
	REQUIRE_EQUAL((uintptr_t)values[1], strlen(errors));
	CHECK(add(state, provider));
	CHECK(cuLinkComplete(state, &image, NULL));
	CHECK(cuModuleLoadData(&module, image));
	expect_runs(module);
	CHECK(cuLinkDestroy(state));

	/* Loading tells in the same way, and never more than there is room for. */
	memset(errors, 'x', sizeof(errors));
	values[1] = (void *)(uintptr_t)8;
	EXPECT(cuModuleLoadDataEx(&module, broken, 4, options, values), CUDA_ERROR_INVALID_PTX);
	REQUIRE_EQUAL((uintptr_t)values[1], 7);
	REQUIRE_EQUAL(errors[7], 0);
	REQUIRE_EQUAL(errors[8], 'x');
}

static void refuse(void)
{
	static char elf[128] = "\177ELF\2\1\1";
	CUjit_option target = CU_JIT_TARGET;
	void *newer = (void *)(uintptr_t)120;
	CUlinkState state;
	CUmodule module;
	void *image;

	/* Machine code, no input at all, and what is no input. */
	CHECK(cuLinkCreate_v2(0, NULL, NULL, &state));
	EXPECT(cuLinkAddData_v2(state, CU_JIT_INPUT_CUBIN, elf, sizeof(elf), NULL, 0, NULL, NULL),
	       CUDA_ERROR_NO_BINARY_FOR_GPU);
	EXPECT(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, NULL, 1, NULL, 0, NULL, NULL),
	       CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLinkAddData_v2(state, CU_JIT_NUM_INPUT_TYPES, user, sizeof(user), NULL, 0, NULL,
				NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuLinkAddData_v2(state, CU_JIT_INPUT_NVVM, user, sizeof(user), NULL, 0, NULL, NULL),
	       CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuLinkDestroy(state));
	EXPECT(add(NULL, user), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuLinkCreate_v2(0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);

	/* For a newer device than this one. */
	CHECK(cuLinkCreate_v2(1, &target, &newer, &state));
	CHECK(add(state, user));
	CHECK(add(state, provider));
	CHECK(cuLinkComplete(state, &image, NULL));
	EXPECT(cuModuleLoadData(&module, image), CUDA_ERROR_NO_BINARY_FOR_GPU);
	CHECK(cuLinkDestroy(state));
}

int main(void)
{
	begin();
	link_two_texts();
	tell_mistakes();
	refuse();
	return 0;
}
