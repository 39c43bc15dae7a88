/* softgpu: count=2,mem=64MiB
 * cuMemcpyPeer comes behind all that the contexts of both sides have been given, and before what they are given later;
 * the context that is current may be neither. */
#include "driver.h"

#include <sched.h>

#define BYTES (1ul << 20)

CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);

static const char waits[] =
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

struct side {
	CUcontext context;
	CUstream stream;
	CUfunction wait;
	CUdeviceptr memory;
};

static volatile unsigned *gate;
static volatile unsigned called;

static void side_make(struct side *side, CUdevice device)
{
	CUmodule module;

	CHECK(cuCtxCreate(&side->context, 0, device));
	CHECK(cuStreamCreate(&side->stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuModuleLoadData(&module, waits));
	CHECK(cuModuleGetFunction(&side->wait, module, "waits"));
	CHECK(cuMemAlloc(&side->memory, BYTES));
	CHECK(cuMemsetD8(side->memory, 1, BYTES));
	CHECK(cuCtxSynchronize());
}

/* In its own stream: the memory becomes that, once the gate is open. */
static void fill_later(const struct side *side, unsigned char value)
{
	CUdeviceptr address;
	void *params[] = { &address };

	CHECK(cuCtxPushCurrent(side->context));
	CHECK(cuMemHostGetDevicePointer(&address, (void *)gate, 0));
	CHECK(cuLaunchKernel(side->wait, 1, 1, 1, 1, 1, 1, 0, side->stream, params, NULL));
	CHECK(cuMemsetD8Async(side->memory, value, BYTES, side->stream));
	CHECK(cuCtxPopCurrent(NULL));
}

/* Opens the gate when the copy has been asked for, and has had time to be made too early. */
static void *open_gate(void *unused)
{
	(void)unused;
	while (!called)
		sched_yield();
	for (int i = 0; i < 10000; i++)
		sched_yield();
	*gate = 1;
	return NULL;
}

static unsigned char last_of(const struct side *side)
{
	unsigned char byte;

	CHECK(cuMemcpyDtoH(&byte, side->memory + BYTES - 1, 1));
	return byte;
}

/* `late`: whose memory is filled before the copy, and takes long. */
static void copy(const struct side *to, const struct side *from, const struct side *late)
{
	pthread_t thread;

	*gate = called = 0;
	CHECK(cuMemsetD8(from->memory, 3, BYTES));
	CHECK(cuCtxSynchronize());
	fill_later(late, 7);
	REQUIRE(!pthread_create(&thread, NULL, open_gate, NULL));
	called = 1;
	CHECK(cuMemcpyPeer(to->memory, to->context, from->memory, from->context, BYTES));
	/* Another stream of the target's, which waits for nothing. */
	CHECK(cuCtxPushCurrent(to->context));
	CHECK(cuMemsetD8Async(to->memory, 9, 1, to->stream));
	CHECK(cuStreamSynchronize(to->stream));
	CHECK(cuCtxPopCurrent(NULL));
	REQUIRE(!pthread_join(thread, NULL));
	REQUIRE_EQUAL(last_of(to), late == from ? 7 : 3);
}

int main(void)
{
	struct side one, other;
	CUcontext third, none = (CUcontext)&one;

	CHECK(cuInit(0));
	side_make(&one, 0);
	side_make(&other, 1);
	CHECK(cuCtxCreate(&third, 0, 0));
	CHECK(cuMemHostAlloc((void **)&gate, 4, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	copy(&one, &other, &other);
	copy(&other, &one, &other);	/* and not over what was copied */
	CHECK(cuCtxSetCurrent(one.context));
	copy(&one, &other, &other);
	EXPECT(cuMemcpyPeer(one.memory, none, other.memory, other.context, 4), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuMemcpyPeer(one.memory, one.context, other.memory, NULL, 4), CUDA_ERROR_INVALID_CONTEXT);
	return 0;
}
