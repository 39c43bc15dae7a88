/* Links the files of its command line, each by what it ends with, and runs what link_a.cu and
 * link_b.cu are together. */
#include "driver.h"

typedef struct CUlinkState_st *CUlinkState;

CUresult cuLinkCreate_v2(unsigned int, CUjit_option *, void **, CUlinkState *);
CUresult cuLinkAddFile_v2(CUlinkState, CUjitInputType, const char *, unsigned int, CUjit_option *,
			  void **);
CUresult cuLinkComplete(CUlinkState, void **, size_t *);
CUresult cuLinkDestroy(CUlinkState);

static CUjitInputType type_of(const char *path)
{
	const char *end = strrchr(path, '.');

	REQUIRE(end);
	return !strcmp(end, ".o")	  ? CU_JIT_INPUT_OBJECT
	       : !strcmp(end, ".a")	  ? CU_JIT_INPUT_LIBRARY
	       : !strcmp(end, ".fatbin") ? CU_JIT_INPUT_FATBINARY
					 : CU_JIT_INPUT_PTX;
}

int main(int argc, char **argv)
{
	CUdeviceptr address;
	void *params[] = { &address }, *image;
	CUfunction function;
	CUlinkState state;
	CUmodule module;
	int value = 6;

	begin();
	CHECK(cuLinkCreate_v2(0, NULL, NULL, &state));
	for (int k = 1; k < argc; k++)
		CHECK(cuLinkAddFile_v2(state, type_of(argv[k]), argv[k], 0, NULL, NULL));
	CHECK(cuLinkComplete(state, &image, NULL));
	CHECK(cuModuleLoadData(&module, image));
	CHECK(cuLinkDestroy(state));
	CHECK(cuModuleGetFunction(&function, module, "linked"));
	CHECK(cuMemAlloc(&address, sizeof(value)));
	CHECK(cuMemcpyHtoD(address, &value, sizeof(value)));
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	CHECK(cuMemcpyDtoH(&value, address, sizeof(value)));
	printf("%d\n", value);
	return 0;
}
