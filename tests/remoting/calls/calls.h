/* calls.h - what the programs of this folder share: every function of the driver API under the
 * name that libcuda exports, a kernel, and checks that say what failed. */
#ifndef FARBUS_TESTS_REMOTING_CALLS_H
#define FARBUS_TESTS_REMOTING_CALLS_H

#include "../../../native/generated/cuda_abi.h"
#include "../../../native/generated/client_api.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(call, expected)								\
	do {										\
		int got_ = (call), want_ = (expected);					\
		if (got_ != want_) {							\
			fprintf(stderr, "%s:%d: %s gave %d, not %d\n", __FILE__, __LINE__, #call, \
				got_, want_);						\
			exit(1);							\
		}									\
	} while (0)

#define CHECK(call) EXPECT(call, CUDA_SUCCESS)

#define REQUIRE(condition)								\
	do {										\
		if (!(condition)) {							\
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);							\
		}									\
	} while (0)

#define REQUIRE_EQUAL(a, b)								\
	do {										\
		long long a_ = (long long)(a), b_ = (long long)(b);			\
		if (a_ != b_) {								\
			fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #a, \
				a_, b_);						\
			exit(1);							\
		}									\
	} while (0)

/* store(address, value): one thread writes a u32;  counter: a u32 variable, 7 at first */
static const char code[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .global .align 4 .u32 counter = 7;\n"
".visible .entry store(.param .u64 pa, .param .u32 pv)\n"
"{\n"
"	.reg .b32 %r<2>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	ld.param.u32 %r1, [pv];\n"
"	st.global.u32 [%rd1], %r1;\n"
"	ret;\n"
"}\n";

static inline CUcontext begin(void)
{
	CUcontext context;

	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
	return context;
}

static inline CUfunction store_kernel(void)
{
	static CUmodule module;
	CUfunction function;

	if (!module)
		CHECK(cuModuleLoadData(&module, code));
	CHECK(cuModuleGetFunction(&function, module, "store"));
	return function;
}

static inline CUdeviceptr words(size_t count, unsigned value)
{
	CUdeviceptr address;

	CHECK(cuMemAlloc_v2(&address, 4 * count));
	CHECK(cuMemsetD32_v2(address, value, count));
	return address;
}

static inline unsigned word_at(CUdeviceptr address)
{
	unsigned value;

	CHECK(cuMemcpyDtoH_v2(&value, address, 4));
	return value;
}

#endif
