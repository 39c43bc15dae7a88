/* softgpu: mem=16MiB
 * Memory of the host by cuMemCreate: kernels of one process and the processor of another, which has it by a
 * descriptor, see one memory at one time. */
#include "gate.h"
#include "descriptor.h"

#include <signal.h>
#include <sys/prctl.h>

#define SIZE (32ul << 20)	/* more than the device has */

static const char exchange[] =
".version 7.0\n"
".target sm_75\n"
".address_size 64\n"
".visible .entry exchange(.param .u64 pa)\n"	/* says 1 in the first word, waits for 2 in the second */
"{\n"
"	.reg .pred %p<2>;\n"
"	.reg .b32 %r<3>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	mov.u32 %r1, 1;\n"
"	st.volatile.global.u32 [%rd1], %r1;\n"
"WAIT:\n"
"	ld.volatile.global.u32 %r2, [%rd1+4];\n"
"	setp.ne.u32 %p1, %r2, 2;\n"
"	@%p1 bra WAIT;\n"
"	ret;\n"
"}\n";

static const CUmemLocation node = { CU_MEM_LOCATION_TYPE_HOST_NUMA, 0 };

static volatile unsigned *map(CUmemGenericAllocationHandle memory)
{
	CUmemAccessDesc device = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemAccessDesc host = { node, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	unsigned long long access = 7;
	CUdeviceptr base;

	CHECK(cuMemAddressReserve(&base, SIZE, 0, 0, 0));
	CHECK(cuMemMap(base, SIZE, 0, memory, 0));
	CHECK(cuMemSetAccess(base, SIZE, &device, 1));
	CHECK(cuMemGetAccess(&access, &node, base));
	REQUIRE(access == CU_MEM_ACCESS_FLAGS_PROT_NONE);
	CHECK(cuMemSetAccess(base, SIZE, &host, 1));
	CHECK(cuMemGetAccess(&access, &node, base));
	REQUIRE(access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	return (volatile unsigned *)base;
}

static int answer(int channel)
{
	CUmemGenericAllocationHandle memory;
	int fd;
	volatile unsigned *words;
	CUmemAllocationProp told;

	REQUIRE(!prctl(PR_SET_PDEATHSIG, SIGKILL));
	fd = receive_descriptor(channel);

	begin();
	CHECK(cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)fd,
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	CHECK(cuMemGetAllocationPropertiesFromHandle(&told, memory));
	REQUIRE(told.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA);
	words = map(memory);
	while (words[0] != 1)
		;
	words[1] = 2;
	return 0;
}

/* What is done to it without Async is over when the call returns. */
static void waits_as_pinned_memory_does(volatile unsigned *words)
{
	CUfunction waits = gate_kernel();
	pthread_t thread;
	unsigned seen;

	gate_make();
	gate_await(waits, NULL);
	thread = gate_open_behind_call();
	CHECK(cuMemsetD32((CUdeviceptr)words, 5, 1));
	seen = words[0];
	REQUIRE(!pthread_join(thread, NULL));
	REQUIRE_EQUAL(seen, 5);
	*gate = 0;
	gate_await(waits, NULL);
	thread = gate_open_behind_call();
	CHECK(cuMemcpy((CUdeviceptr)(words + 1), (CUdeviceptr)words, 4));
	seen = words[1];
	REQUIRE(!pthread_join(thread, NULL));
	REQUIRE_EQUAL(seen, 5);
}

static void refusals(void)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_HOST, 0 },
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	};
	CUmemGenericAllocationHandle memory;

	/* Of no NUMA node: only this process's. */
	EXPECT(cuMemCreate(&memory, SIZE, &properties, 0), CUDA_ERROR_INVALID_VALUE);
	properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	CHECK(cuMemCreate(&memory, SIZE, &properties, 0));
	CHECK(cuMemRelease(memory));
	properties.location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_HOST_NUMA, -1 };
	EXPECT(cuMemCreate(&memory, SIZE, &properties, 0), CUDA_ERROR_INVALID_VALUE);
	properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
	EXPECT(cuMemCreate(&memory, SIZE, &properties, 0), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = node,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	};
	size_t available, still, total, granule = 0;
	CUmemGenericAllocationHandle memory;
	volatile unsigned *words;
	CUfunction function;
	unsigned type = 0;
	int channel[2], fd, status, ordinal = 7;
	CUmodule module;
	void *params[] = { &words };
	pid_t child;

	REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
	child = fork();
	if (!child)
		return answer(channel[1]);
	begin();
	CHECK(cuModuleLoadData(&module, exchange));
	CHECK(cuModuleGetFunction(&function, module, "exchange"));
	CHECK(cuMemGetInfo(&available, &total));
	CHECK(cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	REQUIRE(SIZE % granule == 0);
	CHECK(cuMemCreate(&memory, SIZE, &properties, 0));
	/* No device's memory is taken. */
	CHECK(cuMemGetInfo(&still, &total));
	REQUIRE(still == available);
	words = map(memory);
	CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)words));
	CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)words));
	REQUIRE(type == CU_MEMORYTYPE_HOST && ordinal == -1);
	CHECK(cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_descriptor(channel[0], fd);
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	CHECK(cuCtxSynchronize());
	REQUIRE(words[1] == 2);
	REQUIRE(waitpid(child, &status, 0) == child && status == 0);
	waits_as_pinned_memory_does(words);
	CHECK(cuMemUnmap((CUdeviceptr)words, SIZE));
	CHECK(cuMemRelease(memory));
	refusals();
	return 0;
}
