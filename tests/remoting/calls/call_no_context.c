/* A thread without a current context: what it may ask of addresses, and what it may do in streams that the program
 * made, which have contexts of their own.  All else needs a current one. */
#include "calls.h"

#include <pthread.h>

static CUdeviceptr memory, other;
static CUcontext context;
static CUfunction store;
static CUevent event, again;
static CUstream stream;
static char *pinned;

static void host_function(void *argument)
{
	*(int *)argument = 1;
}

static void ask(void)
{
	CUpointer_attribute wanted[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT };
	CUmemorytype type = 0;
	CUcontext whose = NULL;
	void *told[] = { &type, &whose };
	unsigned set = 1;
	char plain;

	CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
	REQUIRE_EQUAL(type, CU_MEMORYTYPE_DEVICE);
	CHECK(cuPointerGetAttributes(2, wanted, told, (CUdeviceptr)(uintptr_t)pinned));
	REQUIRE(type == CU_MEMORYTYPE_HOST && whose == context);
	CHECK(cuPointerGetAttributes(2, wanted, told, (CUdeviceptr)(uintptr_t)&plain));
	REQUIRE(type == 0 && !whose);
	EXPECT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&plain),
	       CUDA_ERROR_INVALID_VALUE);
	CHECK(cuPointerSetAttribute(&set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
}

static void ask_stream(void)
{
	CUstreamCaptureStatus status;
	unsigned long long id;
	unsigned flags;
	CUcontext whose;
	int priority;

	CHECK(cuStreamGetCtx(stream, &whose));
	REQUIRE(whose == context);
	CHECK(cuStreamGetFlags(stream, &flags));
	REQUIRE_EQUAL(flags, CU_STREAM_NON_BLOCKING);
	CHECK(cuStreamGetPriority(stream, &priority));
	CHECK(cuStreamGetId(stream, &id));
	CHECK(cuStreamIsCapturing(stream, &status));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

static void work(void)
{
	unsigned value = 77;
	void *parameters[] = { &other, &value };
	CUdeviceptr taken;
	int called = 0;

	CHECK(cuMemsetD32Async(memory, 41, 256, stream));
	CHECK(cuMemcpyDtoDAsync_v2(other, memory, 1024, stream));
	CHECK(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
	CHECK(cuMemAllocAsync(&taken, 1024, stream));
	CHECK(cuMemcpyAsync(taken, other, 1024, stream));
	CHECK(cuMemcpyDtoHAsync_v2(pinned, taken, 1024, stream));
	CHECK(cuMemFreeAsync(taken, stream));
	CHECK(cuEventRecord(event, stream));
	CHECK(cuStreamWaitEvent(stream, event, 0));
	CHECK(cuLaunchHostFunc(stream, host_function, &called));
	CHECK(cuEventRecord(again, stream));
	CHECK(cuEventSynchronize(again));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuStreamQuery(stream));
	REQUIRE(called);
	REQUIRE_EQUAL(((unsigned *)(void *)pinned)[0], 77);
	REQUIRE_EQUAL(((unsigned *)(void *)pinned)[255], 41);
	CHECK(cuMemcpyHtoDAsync_v2(memory, pinned, 8, stream));
}

static void capture(void)
{
	CUgraphExec executable;
	CUgraph graph;

	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	CHECK(cuMemsetD32Async(memory + 8, 5, 1, stream));
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
}

static void need_one(void)
{
	CUdeviceptr taken;
	CUstream made;

	EXPECT(cuStreamQuery(NULL), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuEventRecord(event, CU_STREAM_LEGACY), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuMemsetD32Async(memory, 1, 1, CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuMemcpyDtoH_v2(pinned, memory, 4), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuMemAlloc_v2(&taken, 64), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuStreamCreate(&made, 0), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
}

static void *without(void *unused)
{
	CUcontext current = context;

	CHECK(cuCtxGetCurrent(&current));
	REQUIRE(!current);
	ask();
	ask_stream();
	work();
	capture();
	need_one();
	return unused;
}

int main(void)
{
	CUcontext second;
	pthread_t thread;

	context = begin();
	store = store_kernel();
	memory = words(256, 1);
	other = words(256, 2);
	CHECK(cuMemHostAlloc((void **)&pinned, 1 << 16, 0));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, 0));
	CHECK(cuEventCreate(&again, CU_EVENT_DISABLE_TIMING));
	for (int round = 0; round < 2; round++) {
		REQUIRE(!pthread_create(&thread, NULL, without, NULL));
		REQUIRE(!pthread_join(thread, NULL));
		REQUIRE_EQUAL(word_at(memory), 77);
		REQUIRE_EQUAL(word_at(memory + 8), 5);
		/* And while there is more than one context. */
		CHECK(cuCtxCreate_v2(&second, 0, 1));
		CHECK(cuCtxPopCurrent_v2(NULL));
	}
	return 0;
}
