/* The limit of registers that is asked of the just-in-time compiler: loading, linking, libraries. */
#include "driver.h"

#include <stdint.h>

typedef struct CUlinkState_st *CUlinkState;

CUresult cuLinkCreate_v2(unsigned int, CUjit_option *, void **, CUlinkState *);
CUresult cuLinkAddData_v2(CUlinkState, CUjitInputType, void *, size_t, const char *, unsigned int,
			  CUjit_option *, void **);
CUresult cuLinkComplete(CUlinkState, void **, size_t *);
CUresult cuLinkDestroy(CUlinkState);

static CUjit_option limit = CU_JIT_MAX_REGISTERS;

/* A kernel that would like all the registers there are. */
static char *wants_many(const char *name, const char *directives)
{
	static char texts[4][4096];
	static int count;
	char *text = texts[count++];
	int length = sprintf(text, ".version 7.0\n.target sm_75\n.address_size 64\n"
				   ".visible .entry %s()\n%s\n{\n\t.reg .b64 %%q<200>;\n", name, directives);

	for (int i = 1; i < 200; i++)
		length += sprintf(text + length, "\tmov.b64 %%q%d, 1;\n", i);
	sprintf(text + length, "\tret;\n}\n");
	return text;
}

static int registers(CUfunction function)
{
	int count;

	CHECK(cuFuncGetAttribute(&count, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
	return count;
}

static int loaded(char *text, uintptr_t most)
{
	void *value = (void *)most;
	CUfunction function;
	CUmodule module;
	int count;

	CHECK(cuModuleLoadDataEx(&module, text, most ? 1 : 0, &limit, &value));
	CHECK(cuModuleGetFunction(&function, module, "one"));
	count = registers(function);
	CHECK(cuModuleUnload(module));
	return count;
}

int main(void)
{
	char *plain = wants_many("one", ""), *other = wants_many("two", "");
	char *bound = wants_many("one", ".maxntid 32, 1, 1"), *own = wants_many("one", ".maxnreg 48");
	void *forty = (void *)(uintptr_t)40, *thirty = (void *)(uintptr_t)30, *image;
	CUlinkState state;
	CUfunction function;
	CUlibrary library;
	CUkernel kernel;
	CUmodule module;

	begin();
	REQUIRE_EQUAL(loaded(plain, 0), 64);
	REQUIRE_EQUAL(loaded(plain, 40), 40);
	REQUIRE_EQUAL(loaded(plain, 8), 24);	/* as few as ptxas can do with */
	REQUIRE_EQUAL(loaded(plain, 1000), 64);
	/* What a kernel says of itself goes first, as for ptxas -maxrregcount. */
	REQUIRE(loaded(bound, 40) > 64);
	REQUIRE_EQUAL(loaded(own, 40), 48);

	CHECK(cuLibraryLoadData(&library, plain, &limit, &forty, 1, NULL, NULL, 0));
	CHECK(cuLibraryGetKernel(&kernel, library, "one"));
	CHECK(cuKernelGetFunction(&function, kernel));
	REQUIRE_EQUAL(registers(function), 40);
	CHECK(cuLibraryUnload(library));

	/* Linked, each input has its own limit or that of the link, and keeps it when the result is loaded. */
	CHECK(cuLinkCreate_v2(1, &limit, &forty, &state));
	CHECK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, plain, strlen(plain) + 1, "one", 0, NULL, NULL));
	CHECK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, other, strlen(other) + 1, "two", 1, &limit, &thirty));
	CHECK(cuLinkComplete(state, &image, NULL));
	CHECK(cuModuleLoadData(&module, image));
	CHECK(cuLinkDestroy(state));
	CHECK(cuModuleGetFunction(&function, module, "one"));
	REQUIRE_EQUAL(registers(function), 40);
	CHECK(cuModuleGetFunction(&function, module, "two"));
	REQUIRE_EQUAL(registers(function), 30);
	return 0;
}
