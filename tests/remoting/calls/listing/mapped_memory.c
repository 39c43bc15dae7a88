/* Kernels use pinned memory by its address, and the program waits before it reads: as on a GPU of
 * this machine.  "meanwhile": this process touches pinned memory while the GPU works on it, too. */
#include "../calls.h"

#define COUNT 5000u

/* add(out, in, value, count): one block */
static const char adding[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry add(.param .u64 po, .param .u64 pi, .param .u32 pv, .param .u32 pn)\n"
"{\n"
"	.reg .pred %p<2>;\n"
"	.reg .b32 %r<6>;\n"
"	.reg .b64 %rd<6>;\n"
"	ld.param.u64 %rd1, [po];\n"
"	ld.param.u64 %rd2, [pi];\n"
"	ld.param.u32 %r1, [pv];\n"
"	ld.param.u32 %r2, [pn];\n"
"	mov.u32 %r3, %tid.x;\n"
"	mov.u32 %r5, %ntid.x;\n"
"$loop:\n"
"	setp.ge.u32 %p1, %r3, %r2;\n"
"	@%p1 bra $end;\n"
"	mul.wide.u32 %rd3, %r3, 4;\n"
"	add.s64 %rd4, %rd2, %rd3;\n"
"	ld.global.u32 %r4, [%rd4];\n"
"	add.u32 %r4, %r4, %r1;\n"
"	add.s64 %rd5, %rd1, %rd3;\n"
"	st.global.u32 [%rd5], %r4;\n"
"	add.u32 %r3, %r3, %r5;\n"
"	bra $loop;\n"
"$end:\n"
"	ret;\n"
"}\n";

static CUfunction add_kernel;

static CUdeviceptr address_of(const void *memory)
{
	return (CUdeviceptr)(uintptr_t)memory;
}

static void add(CUdeviceptr to, CUdeviceptr from, unsigned value, CUstream stream)
{
	unsigned count = COUNT;
	void *parameters[] = { &to, &from, &value, &count };

	CHECK(cuLaunchKernel(add_kernel, 1, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
}

static void store(void *to, unsigned value, CUstream stream)
{
	CUdeviceptr address = address_of(to);
	void *parameters[] = { &address, &value };

	CHECK(cuLaunchKernel(store_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static unsigned *pinned_words(unsigned flags)
{
	void *memory;

	CHECK(cuMemHostAlloc(&memory, 4 * COUNT, flags));
	return memory;
}

static void expect_all(const unsigned *words, unsigned first)
{
	for (unsigned i = 0; i < COUNT; i++)
		REQUIRE_EQUAL(words[i], first + i);
}

static void expect_answers(CUdevice device)
{
	unsigned *memory = pinned_words(CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
	CUdeviceptr known = address_of(memory + 5), inside = 0, base = 0;
	unsigned type = 0, flags = 0, managed = 7, mapped = 7;
	void *host = NULL, *plain;
	size_t bytes = 0;
	int can = 0;

	CHECK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, device));
	REQUIRE_EQUAL(can, 1);
	CHECK(cuMemHostGetFlags(&flags, memory));
	REQUIRE(flags & CU_MEMHOSTALLOC_DEVICEMAP && flags & CU_MEMHOSTALLOC_PORTABLE);
	CHECK(cuMemHostGetDevicePointer_v2(&inside, memory, 0));
	REQUIRE_EQUAL(inside, address_of(memory));
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, memory, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemHostGetDevicePointer_v2(&inside, &flags, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, known));
	REQUIRE_EQUAL(type, CU_MEMORYTYPE_HOST);
	CHECK(cuPointerGetAttribute(&inside, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, known));
	REQUIRE_EQUAL(inside, known);
	CHECK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, known));
	REQUIRE(host == memory + 5);
	CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, known));
	REQUIRE_EQUAL(managed, 0);
	CHECK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, known));
	REQUIRE_EQUAL(mapped, 1);
	CHECK(cuMemGetAddressRange_v2(&base, &bytes, known));
	REQUIRE(base == address_of(memory) && bytes == 4 * COUNT);
	EXPECT(cuMemAdvise(known, 4, CU_MEM_ADVISE_SET_READ_MOSTLY, device), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFree_v2(address_of(memory)), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFreeHost(memory + 1), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFreeHost(memory));
	EXPECT(cuMemFreeHost(memory), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, known), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemAllocHost_v2(&plain, 1));
	CHECK(cuMemHostGetDevicePointer_v2(&inside, plain, 0));
	CHECK(cuMemFreeHost(plain));
	CHECK(cuMemFreeHost(NULL));
}

static void kernels(CUstream first, CUstream second)
{
	for (unsigned round = 0; round < 20; round++) {
		unsigned *in = pinned_words(0), *out = pinned_words(CU_MEMHOSTALLOC_WRITECOMBINED);
		CUevent event;

		for (unsigned i = 0; i < COUNT; i++)
			in[i] = round + i;
		add(address_of(out), address_of(in), 1, first);
		CHECK(cuStreamSynchronize(first));
		expect_all(out, round + 1);
		/* the host writes anew, one stream behind the other */
		for (unsigned i = 0; i < COUNT; i++)
			in[i] = 3 * round + i;
		CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
		add(address_of(out), address_of(in), 5, first);
		CHECK(cuEventRecord(event, first));
		CHECK(cuStreamWaitEvent(second, event, 0));
		add(address_of(in), address_of(out), 7, second);
		CHECK(cuEventRecord(event, second));
		CHECK(cuEventSynchronize(event));
		expect_all(out, 3 * round + 5);
		expect_all(in, 3 * round + 12);
		CHECK(cuEventDestroy_v2(event));
		CHECK(cuMemFreeHost(in));
		CHECK(cuMemFreeHost(out));
	}
}

static void CUDA_CB fill_in(void *opaque)
{
	unsigned *words = opaque;

	for (unsigned i = 0; i < COUNT; i++)
		words[i] = 900 + i;
}

static void copies(CUstream stream)
{
	unsigned *in = pinned_words(0), *out = pinned_words(0), plain[64];
	CUdeviceptr device;
	CUDA_MEMCPY2D rows = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcPitch = 400,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstPitch = 400,
		.WidthInBytes = 200,
		.Height = 50,
	};

	CHECK(cuMemAlloc_v2(&device, 4 * COUNT));
	for (unsigned i = 0; i < COUNT; i++)
		in[i] = i;
	CHECK(cuMemcpyHtoDAsync_v2(device, in, 4 * COUNT, stream));
	add(device, device, 1, stream);
	/* what a kernel has left in pinned memory is copied behind it */
	add(address_of(out), device, 1, stream);
	CHECK(cuMemcpyHtoDAsync_v2(device, out, 4 * COUNT, stream));
	CHECK(cuMemcpyDtoHAsync_v2(in, device, 4 * COUNT, stream));
	CHECK(cuStreamSynchronize(stream));
	expect_all(out, 2);
	expect_all(in, 2);
	/* waited for by the copy itself */
	in[0] = 100;
	CHECK(cuMemcpyHtoD_v2(device, in, 4 * COUNT));
	in[0] = 200;
	CHECK(cuMemcpyDtoH_v2(out, device, 4 * COUNT));
	REQUIRE_EQUAL(out[0], 100);
	REQUIRE_EQUAL(in[0], 200);
	CHECK(cuMemcpy(address_of(plain), address_of(in), sizeof(plain)));
	REQUIRE(plain[0] == 200 && plain[63] == in[63]);
	CHECK(cuMemcpyAsync(address_of(out), address_of(in), 4 * COUNT, stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(out[0], 200);
	/* a function of the host writes what the copy behind it reads */
	CHECK(cuLaunchHostFunc(stream, fill_in, in));
	CHECK(cuMemcpyHtoDAsync_v2(device, in, 4 * COUNT, stream));
	CHECK(cuMemcpyDtoHAsync_v2(out, device, 4 * COUNT, stream));
	CHECK(cuStreamSynchronize(stream));
	expect_all(out, 900);
	/* rows, there and back with zeros between */
	CHECK(cuMemsetD32_v2(device, 0, COUNT));
	CHECK(cuMemsetD32Async(address_of(out), 1, COUNT, stream));
	CHECK(cuStreamSynchronize(stream));
	rows.srcHost = in;
	rows.dstDevice = device;
	CHECK(cuMemcpy2DAsync_v2(&rows, stream));
	rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
	rows.srcDevice = device;
	rows.dstMemoryType = CU_MEMORYTYPE_HOST;
	rows.dstHost = out;
	rows.WidthInBytes = 400;
	CHECK(cuMemcpy2DAsync_v2(&rows, stream));
	CHECK(cuStreamSynchronize(stream));
	for (unsigned i = 0; i < COUNT; i++)
		REQUIRE_EQUAL(out[i], i % 100 < 50 ? 900 + i : 0);
	CHECK(cuMemFreeHost(in));
	CHECK(cuMemFreeHost(out));
	CHECK(cuMemFree_v2(device));
}

/* The GPU writes one half of the words of each page while the host writes the other, as where a program hands
 * out pinned memory in pieces. */
static void halves(CUstream stream, CUstream other, bool by_copy)
{
	unsigned *both = pinned_words(0);
	CUdeviceptr gate = words(1, 0), source = words(COUNT, 77);

	for (unsigned round = 1; round <= 5; round++) {
		for (unsigned i = 0; i < COUNT; i++)
			both[i] = round;
		CHECK(cuStreamWaitValue32_v2(stream, gate, round, CU_STREAM_WAIT_VALUE_EQ));
		for (unsigned at = 0; at < COUNT; at += 500) {
			if (by_copy)
				CHECK(cuMemcpyDtoHAsync_v2(both + at, source, 4 * 100, stream));
			else
				store(both + at, 77, stream);
		}
		for (unsigned i = 0; i < COUNT; i++)
			if (i % 500 >= 100)
				both[i] = round + i;
		/* work elsewhere takes along what was written so far */
		store((void *)(uintptr_t)source, 77, other);
		CHECK(cuStreamSynchronize(other));
		both[COUNT - 1] = 5;
		REQUIRE_EQUAL(both[101], round + 101);
		CHECK(cuStreamWriteValue32_v2(other, gate, round, 0));
		CHECK(cuStreamSynchronize(stream));
		for (unsigned i = 0; i < COUNT - 1; i++)
			REQUIRE_EQUAL(both[i], i % 500 >= 100                  ? round + i
					       : by_copy || i % 500 == 0 ? 77
									 : round);
		REQUIRE_EQUAL(both[COUNT - 1], 5);
	}
	CHECK(cuMemFreeHost(both));
	CHECK(cuMemFree_v2(gate));
	CHECK(cuMemFree_v2(source));
}

int main(int argc, char **argv)
{
	CUstream first, second;
	CUmodule module;

	begin();
	CHECK(cuModuleLoadData(&module, adding));
	CHECK(cuModuleGetFunction(&add_kernel, module, "add"));
	CHECK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
	expect_answers(0);
	kernels(first, second);
	copies(first);
	if (argc > 1 && !strcmp(argv[1], "meanwhile")) {
		halves(first, second, true);
		halves(first, second, false);
	}
	printf("ok\n");
	return 0;
}
