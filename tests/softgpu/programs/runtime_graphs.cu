/* Graphs through the CUDA runtime, as nvcc makes programs by default: what the runtime translates on its way to
 * the driver.  Compiled for the per-thread default stream, so that stream 0 itself can capture. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

#define EXPECT(call, wanted)								\
	do {										\
		cudaError_t got = (call);						\
		cudaGetLastError();							\
		if (got != (wanted)) {							\
			fprintf(stderr, "%s:%d: %s gave %s\n", __FILE__, __LINE__, #call,	\
				cudaGetErrorName(got));					\
			exit(1);							\
		}									\
	} while (0)
#define CHECK(call) EXPECT(call, cudaSuccess)
#define REQUIRE(condition)								\
	do {										\
		if (!(condition)) {							\
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);	\
			exit(1);							\
		}									\
	} while (0)

__device__ int symbol;

__global__ void add(int *value, int amount)
{
	*value += amount;
}

static int *value;

static int value_now()
{
	int now;

	CHECK(cudaMemcpy(&now, value, sizeof now, cudaMemcpyDeviceToHost));
	return now;
}

static void run(cudaGraphExec_t executable)
{
	CHECK(cudaGraphLaunch(executable, 0));
	CHECK(cudaStreamSynchronize(0));
}

/* Stream 0 is the thread's own, and captures. */
static void test_default_stream()
{
	cudaStreamCaptureStatus status;
	cudaGraphExec_t executable;
	cudaGraph_t graph;
	const cudaGraphNode_t *nodes;
	size_t count;

	CHECK(cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal));
	add<<<1, 1>>>(value, 2);
	CHECK(cudaGetLastError());
	CHECK(cudaStreamGetCaptureInfo(0, &status, nullptr, &graph, &nodes, nullptr, &count));
	REQUIRE(status == cudaStreamCaptureStatusActive && count == 1);
	CHECK(cudaStreamEndCapture(0, &graph));
	cudaGraphInstantiateParams params = {};
	params.flags = cudaGraphInstantiateFlagUpload;
	CHECK(cudaGraphInstantiateWithParams(&executable, graph, &params));
	REQUIRE(params.result_out == cudaGraphInstantiateSuccess);
	CHECK(cudaGraphUpload(executable, 0));
	run(executable);
	run(executable);
	REQUIRE(value_now() == 4);
	CHECK(cudaGraphExecDestroy(executable));
	CHECK(cudaGraphDestroy(graph));
}

/* Symbols, general nodes and their parameters. */
static void test_nodes()
{
	cudaGraph_t graph, clone;
	cudaGraphExec_t executable;
	cudaGraphNode_t to_symbol, kernel, from_symbol, found;
	cudaGraphNodeParams params = {};
	int source = 30, amount = 5, seen = 0;
	void *arguments[] = {&value, &amount};

	CHECK(cudaGraphCreate(&graph, 0));
	CHECK(cudaGraphAddMemcpyNodeToSymbol(&to_symbol, graph, nullptr, 0, symbol, &source, sizeof source, 0,
					     cudaMemcpyHostToDevice));
	void *address;
	CHECK(cudaGetSymbolAddress(&address, symbol));
	arguments[0] = &address;
	params.type = cudaGraphNodeTypeKernel;
	params.kernel.func = (void *)add;
	params.kernel.gridDim = dim3(1);
	params.kernel.blockDim = dim3(1);
	params.kernel.kernelParams = arguments;
	CHECK(cudaGraphAddNode(&kernel, graph, &to_symbol, nullptr, 1, &params));
	CHECK(cudaGraphAddMemcpyNodeFromSymbol(&from_symbol, graph, &kernel, 1, &seen, symbol, sizeof seen, 0,
					       cudaMemcpyDeviceToHost));
	CHECK(cudaGraphInstantiate(&executable, graph, 0));
	run(executable);
	REQUIRE(seen == 35);
	amount = 6;
	CHECK(cudaGraphExecNodeSetParams(executable, kernel, &params));
	run(executable);
	REQUIRE(seen == 36);
	CHECK(cudaGraphClone(&clone, graph));
	CHECK(cudaGraphNodeFindInClone(&found, kernel, clone));
	cudaKernelNodeParams asked;
	CHECK(cudaGraphKernelNodeGetParams(found, &asked));
	REQUIRE(asked.func == (void *)add && *(int *)asked.kernelParams[1] == 5);
	cudaGraphNodeType type;
	CHECK(cudaGraphNodeGetType(from_symbol, &type));
	REQUIRE(type == cudaGraphNodeTypeMemcpy);
	cudaLaunchAttributeValue attribute = {};
	attribute.priority = -1;
	CHECK(cudaGraphKernelNodeSetAttribute(found, cudaLaunchAttributePriority, &attribute));
	attribute.priority = 0;
	CHECK(cudaGraphKernelNodeGetAttribute(found, cudaLaunchAttributePriority, &attribute));
	REQUIRE(attribute.priority == -1);
	CHECK(cudaGraphDestroy(clone));
	CHECK(cudaGraphExecDestroy(executable));
	CHECK(cudaGraphDestroy(graph));
}

/* A copy of several rows, and a fill of several rows. */
static void test_rectangles()
{
	cudaGraph_t graph;
	cudaGraphExec_t executable;
	cudaGraphNode_t fill, copy;
	char *rows, host[4][6];
	size_t pitch;

	CHECK(cudaMallocPitch(&rows, &pitch, 6, 4));
	CHECK(cudaMemset2D(rows, pitch, 1, 6, 4));
	memset(host, 9, sizeof host);
	CHECK(cudaGraphCreate(&graph, 0));
	cudaMemsetParams filling = {};
	filling.dst = rows + pitch + 1;
	filling.pitch = pitch;
	filling.value = 5;
	filling.elementSize = 1;
	filling.width = 2;
	filling.height = 2;
	CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &filling));
	cudaMemcpy3DParms copying = {};
	copying.srcPtr = make_cudaPitchedPtr(rows, pitch, 6, 4);
	copying.dstPtr = make_cudaPitchedPtr(host, 6, 6, 4);
	copying.extent = make_cudaExtent(6, 4, 1);
	copying.kind = cudaMemcpyDeviceToHost;
	CHECK(cudaGraphAddMemcpyNode(&copy, graph, &fill, 1, &copying));
	CHECK(cudaGraphInstantiate(&executable, graph, 0));
	run(executable);
	for (int y = 0; y < 4; y++)
		for (int x = 0; x < 6; x++)
			REQUIRE(host[y][x] == (y >= 1 && y < 3 && x >= 1 && x < 3 ? 5 : 1));
	CHECK(cudaGraphExecDestroy(executable));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaFree(rows));
}

/* Memory of a node, events, a graph into which a stream captures. */
static void test_memory_and_events()
{
	cudaGraph_t graph, same;
	cudaGraphExec_t executable;
	cudaGraphNode_t alloc, record;
	cudaEvent_t event;
	cudaStream_t stream;

	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaEventCreate(&event));
	CHECK(cudaGraphCreate(&graph, 0));
	cudaMemAllocNodeParams params = {};
	params.poolProps.allocType = cudaMemAllocationTypePinned;
	params.poolProps.location.type = cudaMemLocationTypeDevice;
	params.bytesize = 64;
	CHECK(cudaGraphAddMemAllocNode(&alloc, graph, nullptr, 0, &params));
	CHECK(cudaStreamBeginCaptureToGraph(stream, graph, &alloc, nullptr, 1, cudaStreamCaptureModeRelaxed));
	CHECK(cudaMemsetAsync(params.dptr, 1, 64, stream));
	CHECK(cudaMemcpyAsync(value, params.dptr, sizeof(int), cudaMemcpyDefault, stream));
	CHECK(cudaFreeAsync(params.dptr, stream));
	CHECK(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
	CHECK(cudaStreamEndCapture(stream, &same));
	REQUIRE(same == graph);
	CHECK(cudaGraphAddEventRecordNode(&record, graph, nullptr, 0, event));
	CHECK(cudaGraphInstantiate(&executable, graph, 0));
	CHECK(cudaGraphLaunch(executable, stream));
	CHECK(cudaEventSynchronize(event));
	CHECK(cudaStreamSynchronize(stream));
	REQUIRE(value_now() == 0x01010101);
	unsigned long long bytes;
	CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &bytes));
	REQUIRE(bytes == 64);
	CHECK(cudaGraphExecDestroy(executable));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaDeviceGraphMemTrim(0));
	CHECK(cudaEventDestroy(event));
	CHECK(cudaStreamDestroy(stream));
}

__global__ void count_down(int *left, cudaGraphConditionalHandle loop)
{
	cudaGraphSetConditional(loop, --*left);
}

/* A loop whose condition a kernel sets. */
static void test_condition()
{
	const int five = 5;
	cudaGraphConditionalHandle loop;
	cudaGraphNodeParams params = {};
	cudaGraphExec_t executable;
	cudaGraphNode_t node;
	cudaStream_t stream;
	cudaGraph_t graph;

	CHECK(cudaMemcpy(value, &five, sizeof five, cudaMemcpyHostToDevice));
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaGraphCreate(&graph, 0));
	CHECK(cudaGraphConditionalHandleCreate(&loop, graph, 1, cudaGraphCondAssignDefault));
	params.type = cudaGraphNodeTypeConditional;
	params.conditional.handle = loop;
	params.conditional.type = cudaGraphCondTypeWhile;
	params.conditional.size = 1;
	CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
	CHECK(cudaStreamBeginCaptureToGraph(stream, params.conditional.phGraph_out[0], nullptr, nullptr, 0,
					    cudaStreamCaptureModeRelaxed));
	count_down<<<1, 1, 0, stream>>>(value, loop);
	CHECK(cudaStreamEndCapture(stream, nullptr));
	CHECK(cudaGraphInstantiate(&executable, graph, 0));
	CHECK(cudaGraphLaunch(executable, stream));
	CHECK(cudaStreamSynchronize(stream));
	REQUIRE(value_now() == 0);
	CHECK(cudaGraphExecDestroy(executable));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaStreamDestroy(stream));
}

/* What is not served says so. */
static void test_refused()
{
	cudaGraph_t graph;
	cudaGraphExec_t executable;
	cudaGraphNode_t node;

	CHECK(cudaGraphCreate(&graph, 0));
	CHECK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
	EXPECT(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagDeviceLaunch),
	       cudaErrorNotSupported);
	CHECK(cudaGraphDestroy(graph));
}

int main()
{
	CHECK(cudaMalloc(&value, sizeof *value));
	CHECK(cudaMemset(value, 0, sizeof *value));
	test_default_stream();
	test_nodes();
	test_rectangles();
	test_memory_and_events();
	test_condition();
	test_refused();
	CHECK(cudaFree(value));
	return 0;
}
