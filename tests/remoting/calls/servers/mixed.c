/* Objects of two servers in one call: the error that CUDA has for objects of two contexts,
 * and the exact reason where CUDA would do it.  Devices 0 and 1 are two servers'. */
#include "../calls.h"

static const char *const PTX =
	".version 7.0\n.target sm_75\n.address_size 64\n"
	".visible .global .align 4 .u32 kept;\n"
	".visible .entry put(.param .u64 to, .param .u32 value)\n"
	"{\n.reg .b64 %rd<3>;\n.reg .b32 %r<2>;\n"
	"ld.param.u64 %rd1, [to];\ncvta.to.global.u64 %rd2, %rd1;\n"
	"ld.param.u32 %r1, [value];\nst.global.u32 [%rd2], %r1;\nret;\n}\n";

static CUcontext contexts[2];
static CUstream streams[2];
static CUdeviceptr memory[2];

static void make_current(int device)
{
	CHECK(cuCtxSetCurrent(contexts[device]));
}

static unsigned value_at(CUdeviceptr address)
{
	unsigned value;

	CHECK(cuMemcpyDtoH_v2(&value, address, sizeof value));
	return value;
}

static void put(CUfunction function, CUdeviceptr to, unsigned value, CUstream stream)
{
	void *parameters[] = { &to, &value };

	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

/* A module is one context's; a library's kernels are there on every device. */
static void kernels(void)
{
	CUmodule module;
	CUfunction function;
	CUlibrary library;
	CUkernel kernel;
	CUdeviceptr globals[2];
	size_t bytes;
	unsigned value = 1;
	int attributes[2];

	make_current(0);
	CHECK(cuModuleLoadData(&module, PTX));
	CHECK(cuModuleGetFunction(&function, module, "put"));
	put(function, memory[0], 7, streams[0]);
	REQUIRE(value_at(memory[0]) == 7);
	make_current(1);
	void *parameters[] = { &memory[1], &value };
	EXPECT(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, streams[1], parameters, NULL),
		      CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL),
		      CUDA_ERROR_INVALID_HANDLE);
	/* It is unloaded from wherever. */
	CHECK(cuModuleUnload(module));

	make_current(0);
	CHECK(cuLibraryLoadData(&library, PTX, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cuLibraryGetKernel(&kernel, library, "put"));
	make_current(1);
	put((CUfunction)kernel, memory[1], 8, streams[1]);
	REQUIRE(value_at(memory[1]) == 8);
	make_current(0);
	put((CUfunction)kernel, memory[0], 9, NULL);
	/* The stream says where, not the current context. */
	put((CUfunction)kernel, memory[1], 10, streams[1]);
	CHECK(cuStreamSynchronize(streams[1]));
	REQUIRE(value_at(memory[0]) == 9 && value_at(memory[1]) == 10);
	for (int device = 0; device < 2; device++) {
		make_current(device);
		CHECK(cuLibraryGetGlobal(&globals[device], &bytes, library, "kept"));
		CHECK(cuMemsetD32_v2(globals[device], 100u + (unsigned)device, 1));
		CHECK(cuKernelGetAttribute(&attributes[device], CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
					    kernel, device));
		REQUIRE(attributes[device] > 0);
	}
	REQUIRE(globals[0] != globals[1]);
	REQUIRE(value_at(globals[0]) == 100 && value_at(globals[1]) == 101);
	CHECK(cuLibraryUnload(library));
	EXPECT(cuLibraryGetKernel(&kernel, library, "put"), CUDA_ERROR_INVALID_HANDLE);
}

static void nothing(void *unused)
{
	(void)unused;
}

static void graphs(void)
{
	CUgraph graph, captured;
	CUgraphExec exec;
	CUgraphNode node;
	CUevent event;
	CUDA_MEMSET_NODE_PARAMS set = { 0 };
	CUDA_HOST_NODE_PARAMS host = { nothing, NULL };

	make_current(0);
	CHECK(cuGraphCreate(&graph, 0));
	set.dst = memory[0];
	set.elementSize = 4;
	set.value = 55;
	set.width = set.height = 1;
	CHECK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, contexts[0]));
	set.dst = memory[1];
	EXPECT(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, contexts[1]),
		      CUDA_ERROR_NOT_SUPPORTED);
	/* It goes to its own server whichever is current. */
	make_current(1);
	CHECK(cuGraphAddHostNode(&node, graph, NULL, 0, &host));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	EXPECT(cuGraphLaunch(exec, streams[1]), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuGraphLaunch(exec, streams[0]));
	CHECK(cuStreamSynchronize(streams[0]));
	REQUIRE(value_at(memory[0]) == 55);
	CHECK(cuGraphExecDestroy(exec));
	/* Neither does it where its launches are posted. */
	CHECK(cuGraphDestroyNode(node));
	CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (unsigned i = 0; i < 3; i++) {
		CHECK(cuMemsetD32Async(memory[0], i, 1, streams[0]));
		CHECK(cuGraphLaunch(exec, streams[0]));
		CHECK(cuGraphLaunch(exec, streams[0]));
		EXPECT(cuGraphLaunch(exec, streams[1]), CUDA_ERROR_NOT_SUPPORTED);
	}
	CHECK(cuStreamSynchronize(streams[0]));
	REQUIRE(value_at(memory[0]) == 55);
	CHECK(cuGraphExecDestroy(exec));
	CHECK(cuGraphDestroy(graph));

	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventRecord(event, streams[1]));
	make_current(0);
	CHECK(cuStreamBeginCapture_v2(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	EXPECT(cuStreamWaitEvent(streams[0], event, 0), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuMemcpyAsync(memory[1], memory[0], 4, streams[0]), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuStreamEndCapture(streams[0], &captured));
	CHECK(cuGraphDestroy(captured));
	CHECK(cuEventDestroy_v2(event));
}

/* Graphs of both servers have different handles. */
static void names(void)
{
	CUgraph graph[2];
	CUmemoryPool pool[2], preferred;
	CUdeviceptr address;
	CUarray array[2];
	CUDA_ARRAY_DESCRIPTOR shape = { 0 };
	CUmemAccessDesc access = { 0 };
	unsigned texels[2][16], back[16];

	shape.Width = 16;
	shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
	shape.NumChannels = 1;
	for (int device = 0; device < 2; device++) {
		make_current(device);
		CHECK(cuGraphCreate(&graph[device], 0));
		CHECK(cuDeviceGetDefaultMemPool(&pool[device], device));
		CHECK(cuDeviceGetMemPool(&preferred, device));
		REQUIRE(preferred == pool[device]);
		CHECK(cuArrayCreate_v2(&array[device], &shape));
		for (int i = 0; i < 16; i++)
			texels[device][i] = (unsigned)(1000 * device + i);
		CHECK(cuMemcpyHtoA_v2(array[device], 0, texels[device], sizeof texels[device]));
	}
	REQUIRE(graph[0] != graph[1] && pool[0] != pool[1] && array[0] != array[1]);
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location.id = 1;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	EXPECT(cuMemPoolSetAccess(pool[0], &access, 1), CUDA_ERROR_INVALID_DEVICE);
	make_current(0);
	EXPECT(cuMemAllocFromPoolAsync(&address, 64, pool[0], streams[1]),
		      CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuMemAllocFromPoolAsync(&address, 64, pool[0], streams[0]));
	EXPECT(cuMemFreeAsync(address, streams[1]), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuMemFreeAsync(address, streams[0]));
	make_current(1);
	CHECK(cuMemAllocAsync(&address, 64, streams[1]));
	CHECK(cuMemsetD32Async(address, 77, 16, streams[1]));
	CHECK(cuStreamSynchronize(streams[1]));
	REQUIRE(value_at(address) == 77);
	CHECK(cuMemFreeAsync(address, streams[1]));
	/* Of the current context or not, an array is where it is. */
	make_current(1);
	CHECK(cuMemcpyAtoH_v2(back, array[0], 0, sizeof back));
	REQUIRE(memcmp(back, texels[0], sizeof back) == 0);
	CHECK(cuMemcpyDtoA_v2(array[0], 0, memory[1], 4));
	CHECK(cuMemcpyAtoA_v2(array[1], 0, array[0], 4, 60));
	CHECK(cuMemcpyAtoH_v2(back, array[1], 0, sizeof back));
	REQUIRE(back[0] == 1 && back[14] == 15 && back[15] == 1015);
	for (int device = 0; device < 2; device++) {
		CHECK(cuGraphDestroy(graph[device]));
		CHECK(cuArrayDestroy(array[device]));
	}
}

static void addresses(void)
{
	CUmulticastObjectProp team = { .numDevices = 2 };
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = { 0 };
	CUmemAccessDesc access = { 0 };
	CUdeviceptr reserved;
	size_t granularity;

	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = 1;
	access.location = prop.location;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	CHECK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	make_current(0);
	CHECK(cuMemCreate(&handle, granularity, &prop, 0));
	CHECK(cuMemAddressReserve(&reserved, granularity, 0, 0, 0));
	EXPECT(cuMemMap(reserved, granularity, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuMemAddressFree(reserved, granularity));
	make_current(1);
	CHECK(cuMemAddressReserve(&reserved, granularity, 0, 0, 0));
	make_current(0);
	CHECK(cuMemMap(reserved, granularity, 0, handle, 0));
	CHECK(cuMemSetAccess(reserved, granularity, &access, 1));
	CHECK(cuMemcpyDtoD_v2(reserved, memory[0], 4));
	CHECK(cuStreamSynchronize(NULL));
	REQUIRE(value_at(reserved) == value_at(memory[0]));
	CHECK(cuMemUnmap(reserved, granularity));
	CHECK(cuMemAddressFree(reserved, granularity));
	CHECK(cuMemRelease(handle));
	CHECK(cuMulticastGetGranularity(&team.size, &team, CU_MULTICAST_GRANULARITY_MINIMUM));
	CHECK(cuMulticastCreate(&handle, &team));
	CHECK(cuMulticastAddDevice(handle, 0));
	EXPECT(cuMulticastAddDevice(handle, 1), CUDA_ERROR_INVALID_DEVICE);
	CHECK(cuMemRelease(handle));
}

int main(void)
{
	CHECK(cuInit(0));
	for (int device = 0; device < 2; device++) {
		CHECK(cuDevicePrimaryCtxRetain(&contexts[device], device));
		make_current(device);
		CHECK(cuStreamCreate(&streams[device], CU_STREAM_DEFAULT));
		CHECK(cuMemAlloc_v2(&memory[device], 4096));
		CHECK(cuMemsetD32_v2(memory[device], 1, 1024));
	}
	kernels();
	graphs();
	make_current(1);
	CHECK(cuMemsetD32_v2(memory[1], 1, 1024));
	names();
	addresses();
	make_current(0);
	/* Of another device's memory, as without peer access. */
	EXPECT(cuMemsetD32_v2(memory[1], 1, 1), CUDA_ERROR_INVALID_VALUE);
	/* One context ends; the other's objects stay. */
	CHECK(cuDevicePrimaryCtxReset_v2(0));
	make_current(1);
	REQUIRE(value_at(memory[1]) == 1);
	CHECK(cuStreamDestroy_v2(streams[1]));
	return 0;
}
