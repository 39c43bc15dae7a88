/* Contexts end while other threads use them: their calls are errors, and nothing goes under them. */
#include "driver.h"

#define USERS 3
#define ROUNDS 60
#define LAUNCHES 10

CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
CUresult cuArrayDestroy(CUarray);
CUresult cuFuncGetName(const char **, CUfunction);
CUresult cuGraphDestroy(CUgraph);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr, const void *, size_t, CUstream);
CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
CUresult cuStreamEndCapture(CUstream, CUgraph *);

static CUcontext context;
static sem_t working;
static volatile bool over;

static void use_graph(CUstream stream, CUfunction store, CUdeviceptr word)
{
	CUgraphExec executable;
	CUgraph graph;

	if (cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
		return;
	launch_store(store, word, 1, stream);
	if (cuStreamEndCapture(stream, &graph))
		return;
	if (!cuGraphInstantiateWithFlags(&executable, graph, 0)) {
		cuGraphLaunch(executable, stream);
		cuGraphExecDestroy(executable);
	}
	cuGraphDestroy(graph);
}

static void use_others(CUstream stream)
{
	CUDA_ARRAY_DESCRIPTOR square = { 16, 16, CU_AD_FORMAT_FLOAT, 1 };
	unsigned flags;
	CUevent event;
	CUarray array;
	void *pinned;

	if (!cuEventCreate(&event, CU_EVENT_DEFAULT)) {
		cuEventRecord(event, stream);
		cuStreamWaitEvent(NULL, event, 0);
		cuEventSynchronize(event);
		cuEventDestroy(event);
	}
	if (!cuArrayCreate_v2(&array, &square))
		cuArrayDestroy(array);
	if (!cuMemHostAlloc(&pinned, 4096, 0)) {
		cuMemHostGetFlags(&flags, pinned);
		cuMemFreeHost(pinned);
	}
}

static void use_all(void)
{
	unsigned char bytes[256] = { 0 };
	CUdeviceptr memory, counter;
	const char *name;
	CUmodule module;
	CUfunction store;
	CUstream stream;
	size_t size;

	if (cuMemAlloc(&memory, sizeof bytes) || cuStreamCreate(&stream, 0) ||
	    cuModuleLoadData(&module, kernels) || cuModuleGetFunction(&store, module, "store"))
		return;
	cuMemcpyHtoD(memory, bytes, sizeof bytes);
	cuMemsetD32(memory, 1, sizeof bytes / 4);
	cuMemsetD32Async(memory, 2, sizeof bytes / 4, stream);
	cuMemcpyHtoDAsync_v2_ptsz(memory, bytes, sizeof bytes, NULL);
	for (int i = 0; i < LAUNCHES; i++) {
		launch_store(store, memory, 1, i % 2 ? stream : NULL);
		cuFuncGetName(&name, store);
		cuModuleGetGlobal(&counter, &size, module, "counter");
		cuStreamQuery(stream);
		cuStreamQuery(NULL);
	}
	use_others(stream);
	use_graph(stream, store, memory);
	cuStreamSynchronize(stream);
	cuMemcpyDtoH(bytes, memory, sizeof bytes);
	cuStreamDestroy(stream);
	cuModuleUnload(module);
	cuMemFree(memory);
}

static void *use(void *unused)
{
	cuCtxSetCurrent(context);
	while (!over) {
		use_all();
		sem_post(&working);
	}
	return unused;
}

static void begin_use(pthread_t *users)
{
	over = false;
	for (int i = 0; i < USERS; i++)
		REQUIRE(!pthread_create(&users[i], NULL, use, NULL));
}

static void end_use(const pthread_t *users)
{
	over = true;
	for (int i = 0; i < USERS; i++)
		pthread_join(users[i], NULL);
}

int main(void)
{
	pthread_t users[USERS];
	CUcontext again;

	sem_init(&working, 0, 0);
	context = begin();
	begin_use(users);
	for (int i = 0; i < ROUNDS; i++) {
		sem_wait(&working);
		CHECK(i % 2 ? cuDevicePrimaryCtxReset(0) : cuDevicePrimaryCtxRelease(0));
		CHECK(cuDevicePrimaryCtxRetain(&again, 0));
	}
	end_use(users);
	for (int i = 0; i < ROUNDS / USERS; i++) {
		CHECK(cuCtxCreate(&context, 0, 0));
		begin_use(users);
		sem_wait(&working);
		CHECK(cuCtxDestroy(context));
		end_use(users);
	}
	return 0;
}
