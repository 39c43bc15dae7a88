/* softgpu: count=2,mem=64MiB
 * cuMemcpyPeer comes behind all that the contexts of both sides have been given, and before what they are given later;
 * the context that is current may be neither. */
#include "gate.h"

#define BYTES (1ul << 20)

CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);

struct side {
	CUcontext context;
	CUstream stream;
	CUfunction wait;
	CUdeviceptr memory;
};

static void side_make(struct side *side, CUdevice device)
{
	CHECK(cuCtxCreate(&side->context, 0, device));
	CHECK(cuStreamCreate(&side->stream, CU_STREAM_NON_BLOCKING));
	side->wait = gate_kernel();
	CHECK(cuMemAlloc(&side->memory, BYTES));
	CHECK(cuMemsetD8(side->memory, 1, BYTES));
	CHECK(cuCtxSynchronize());
}

/* In its own stream: the memory becomes that, once the gate is open. */
static void fill_later(const struct side *side, unsigned char value)
{
	CHECK(cuCtxPushCurrent(side->context));
	gate_await(side->wait, side->stream);
	CHECK(cuMemsetD8Async(side->memory, value, BYTES, side->stream));
	CHECK(cuCtxPopCurrent(NULL));
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

	*gate = 0;
	CHECK(cuMemsetD8(from->memory, 3, BYTES));
	CHECK(cuCtxSynchronize());
	fill_later(late, 7);
	thread = gate_open_behind_call();
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
	gate_make();
	copy(&one, &other, &other);
	copy(&other, &one, &other);	/* and not over what was copied */
	CHECK(cuCtxSetCurrent(one.context));
	copy(&one, &other, &other);
	EXPECT(cuMemcpyPeer(one.memory, none, other.memory, other.context, 4), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuMemcpyPeer(one.memory, one.context, other.memory, NULL, 4), CUDA_ERROR_INVALID_CONTEXT);
	return 0;
}
