/* gate.h - work that lasts until a gate is open, for tests of who waits for what. */
#ifndef FARBUS_TESTS_SOFTGPU_GATE_H
#define FARBUS_TESTS_SOFTGPU_GATE_H

#include "driver.h"

#include <sched.h>

static const char gate_code[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry waits(.param .u64 p)\n"
"{\n"
"	.reg .b64 %rd<2>;\n"
"	.reg .b32 %r<2>;\n"
"	.reg .pred %p<2>;\n"
"	ld.param.u64 %rd1, [p];\n"
"L:	ld.volatile.global.u32 %r1, [%rd1];\n"
"	setp.eq.u32 %p1, %r1, 0;\n"
"	@%p1 bra L;\n"
"	ret;\n"
"}\n";

static volatile unsigned *gate;
static volatile unsigned gate_called;

/* In the context that is to outlive its use. */
static inline void gate_make(void)
{
	CHECK(cuMemHostAlloc((void **)&gate, 4, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	*gate = 0;
}

/* The kernel that waits for it, in the current context. */
static inline CUfunction gate_kernel(void)
{
	CUfunction function;
	CUmodule module;

	CHECK(cuModuleLoadData(&module, gate_code));
	CHECK(cuModuleGetFunction(&function, module, "waits"));
	return function;
}

static inline void gate_await(CUfunction waits, CUstream stream)
{
	CUdeviceptr address;
	void *params[] = { &address };

	CHECK(cuMemHostGetDevicePointer(&address, (void *)gate, 0));
	CHECK(cuLaunchKernel(waits, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static inline void *gate_open_later(void *unused)
{
	(void)unused;
	while (!gate_called)
		sched_yield();
	for (int i = 0; i < 10000; i++)
		sched_yield();
	*gate = 1;
	return NULL;
}

/* Another thread opens it when the call that comes next is there, and has had time to return too early. */
static inline pthread_t gate_open_behind_call(void)
{
	pthread_t thread;

	gate_called = 0;
	REQUIRE(!pthread_create(&thread, NULL, gate_open_later, NULL));
	gate_called = 1;
	return thread;
}

#endif
