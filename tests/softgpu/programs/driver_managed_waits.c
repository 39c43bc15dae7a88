/* Copies and fills without Async in their names are over when they return where the program may look at memory next:
 * at managed memory, a module's variables among it. */
#include "gate.h"

#include <stdint.h>

static const char code[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .global .attribute(.managed) .align 4 .u32 variable;\n";

static CUfunction waits;

static pthread_t close_gate(void)
{
	*gate = 0;
	gate_await(waits, NULL);
	return gate_open_behind_call();
}

static void expect(CUdeviceptr memory, unsigned value, pthread_t thread)
{
	unsigned seen = *(volatile unsigned *)(uintptr_t)memory;

	REQUIRE(!pthread_join(thread, NULL));
	REQUIRE_EQUAL(seen, value);
}

static void look_at(CUdeviceptr memory, CUdeviceptr source)
{
	pthread_t thread = close_gate();

	CHECK(cuMemsetD32(memory, 5, 1));
	expect(memory, 5, thread);
	thread = close_gate();
	CHECK(cuMemcpy(memory, source, 4));
	expect(memory, 7, thread);
	CHECK(cuMemsetD32(memory, 0, 1));
	thread = close_gate();
	CHECK(cuMemcpyDtoD(memory, source, 4));
	expect(memory, 7, thread);
	CHECK(cuCtxSynchronize());
}

int main(void)
{
	CUdeviceptr source, managed, variable;
	CUmodule module;

	begin();
	CHECK(cuModuleLoadData(&module, code));
	CHECK(cuModuleGetGlobal(&variable, NULL, module, "variable"));
	gate_make();
	waits = gate_kernel();
	CHECK(cuMemAlloc(&source, 4));
	CHECK(cuMemsetD32(source, 7, 1));
	CHECK(cuMemAllocManaged(&managed, 4, CU_MEM_ATTACH_GLOBAL));
	look_at(managed, source);
	look_at(variable, source);
	CHECK(cuModuleUnload(module));
	return 0;
}
