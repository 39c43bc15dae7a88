// CUDA graphs: a program that is the same chain of operations that do not commute, once launched directly,
// then as a graph built by hand, as a graph captured from forked streams, and updated between launches.  All
// agree with the CPU, launch after launch.
#include <cooperative_groups.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FAIL(...) (std::printf("FAIL graphs " __VA_ARGS__), std::puts(""), std::exit(1))

#define CUDA(call)                                                                 \
	do {                                                                       \
		if (const cudaError_t error = (call))                              \
			FAIL("%s: %s", #call, cudaGetErrorString(error));          \
	} while (0)

#define EXPECT(call, wanted)                                                       \
	do {                                                                       \
		const cudaError_t error = (call);                                  \
		cudaGetLastError();                                                \
		if (error != (wanted))                                             \
			FAIL("%s: %s", #call, cudaGetErrorName(error));            \
	} while (0)

static const int COUNT = 3000;
static const int THREADS = 128;
static const dim3 BLOCKS((COUNT + THREADS - 1) / THREADS);

__global__ void step(unsigned *values, unsigned factor, unsigned addend)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < COUNT)
		values[i] = values[i] * factor + addend;
}

__global__ void join(unsigned *sum, const unsigned *a, const unsigned *b)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < COUNT)
		sum[i] = a[i] * 5 + b[i];
}

/// Every element becomes the sum of its old value and its mirror's: only right when the grid waits in between.
__global__ void mirror(unsigned *values)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	const unsigned other = i < COUNT ? values[COUNT - 1 - i] : 0;
	cooperative_groups::this_grid().sync();
	if (i < COUNT)
		values[i] += other;
}

static void check(const char *what, const unsigned *found, unsigned expected)
{
	for (int i = 0; i < COUNT; i++)
		if (found[i] != expected)
			FAIL("%s, element %d: %u instead of %u", what, i, found[i], expected);
}

static std::vector<unsigned> to_host(const unsigned *array)
{
	std::vector<unsigned> values(COUNT);
	CUDA(cudaMemcpy(values.data(), array, COUNT * sizeof *array, cudaMemcpyDeviceToHost));
	return values;
}

static unsigned *a, *b, *sum, *host;
static cudaStream_t stream, side;
static cudaEvent_t forked, joined;

static void count_call(void *calls)
{
	++*static_cast<int *>(calls);
}

///memset -> step -> step -> copy to the host -> host function, node by node.
static void by_hand()
{
	const size_t bytes = COUNT * sizeof *a;
	cudaGraph_t graph;
	cudaGraphNode_t fill, first, second, copy, call;
	cudaGraphExec_t executable;
	int calls = 0;

	CUDA(cudaGraphCreate(&graph, 0));
	cudaMemsetParams zeros = {};
	zeros.dst = a;
	zeros.value = 1;
	zeros.elementSize = 4;
	zeros.width = COUNT;
	zeros.height = 1;
	CUDA(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &zeros));
	unsigned factor = 3, addend = 4;
	void *arguments[] = {&a, &factor, &addend};
	cudaKernelNodeParams kernel = {};
	kernel.func = reinterpret_cast<void *>(step);
	kernel.gridDim = BLOCKS;
	kernel.blockDim = dim3(THREADS);
	kernel.kernelParams = arguments;
	CUDA(cudaGraphAddKernelNode(&first, graph, &fill, 1, &kernel));
	factor = 7;
	CUDA(cudaGraphAddKernelNode(&second, graph, &first, 1, &kernel));
	CUDA(cudaGraphAddMemcpyNode1D(&copy, graph, &second, 1, host, a, bytes, cudaMemcpyDeviceToHost));
	cudaHostNodeParams function = {count_call, &calls};
	CUDA(cudaGraphAddHostNode(&call, graph, &copy, 1, &function));

	size_t nodes = 0, edges = 0;
	CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
	CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
	if (nodes != 5 || edges != 4)
		FAIL("%zu nodes and %zu edges instead of 5 and 4", nodes, edges);
	cudaKernelNodeParams asked = {};
	CUDA(cudaGraphKernelNodeGetParams(second, &asked));
	if (asked.func != reinterpret_cast<void *>(step) || asked.gridDim.x != BLOCKS.x ||
	    *static_cast<unsigned *>(asked.kernelParams[1]) != 7)
		FAIL("the parameters of a kernel node are not what they were");

	CUDA(cudaGraphInstantiate(&executable, graph, 0));
	for (int launch = 1; launch <= 3; launch++) {
		CUDA(cudaGraphLaunch(executable, stream));
		CUDA(cudaStreamSynchronize(stream));
		check("by hand", host, (1 * 3 + 4) * 7 + 4);
		if (calls != launch)
			FAIL("the host function was called %d times, not %d", calls, launch);
	}
	factor = 11;
	CUDA(cudaGraphExecKernelNodeSetParams(executable, second, &kernel));
	CUDA(cudaGraphExecMemcpyNodeSetParams1D(executable, copy, host, a, bytes, cudaMemcpyDeviceToHost));
	CUDA(cudaGraphLaunch(executable, stream));
	CUDA(cudaStreamSynchronize(stream));
	check("with a new parameter", host, (1 * 3 + 4) * 11 + 4);
	CUDA(cudaGraphNodeSetEnabled(executable, first, 0));
	CUDA(cudaGraphLaunch(executable, stream));
	CUDA(cudaStreamSynchronize(stream));
	check("with a node switched off", host, 1 * 11 + 4);
	CUDA(cudaGraphExecDestroy(executable));
	CUDA(cudaGraphDestroy(graph));
}

/// Fork into two streams, join them, and mirror within one grid.
static cudaGraph_t capture(unsigned factor)
{
	cudaGraph_t graph;
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	CUDA(cudaMemsetAsync(a, 0, COUNT * sizeof *a, stream));
	step<<<BLOCKS, THREADS, 0, stream>>>(a, 1, 2);
	CUDA(cudaMemcpyAsync(b, a, COUNT * sizeof *a, cudaMemcpyDeviceToDevice, stream));
	CUDA(cudaEventRecord(forked, stream));
	CUDA(cudaStreamWaitEvent(side, forked, 0));
	step<<<BLOCKS, THREADS, 0, side>>>(b, factor, 1);
	step<<<BLOCKS, THREADS, 0, side>>>(b, factor, 2);
	CUDA(cudaEventRecord(joined, side));
	step<<<BLOCKS, THREADS, 0, stream>>>(a, 3, 3);
	CUDA(cudaStreamWaitEvent(stream, joined, 0));
	join<<<BLOCKS, THREADS, 0, stream>>>(sum, a, b);
	void *arguments[] = {&sum};
	CUDA(cudaLaunchCooperativeKernel(mirror, BLOCKS, dim3(THREADS), arguments, 0, stream));
	CUDA(cudaStreamEndCapture(stream, &graph));
	return graph;
}

static unsigned captured(unsigned factor)
{
	return 2 * (5 * (2 * 3 + 3) + (2 * factor + 1) * factor + 2);
}

static void by_capture()
{
	cudaGraph_t graph = capture(2), again;
	cudaGraphExec_t executable;
	cudaGraphExecUpdateResultInfo info;

	check("nothing runs in a capture", to_host(sum).data(), 0);
	CUDA(cudaGraphInstantiate(&executable, graph, 0));
	CUDA(cudaGraphDestroy(graph));
	for (unsigned factor = 2; factor < 6; factor++) {
		CUDA(cudaGraphLaunch(executable, side));
		CUDA(cudaStreamSynchronize(side));
		check("by capture", to_host(sum).data(), captured(factor));
		// The same code captured again: other parameters, the same shape.
		again = capture(factor + 1);
		CUDA(cudaGraphExecUpdate(executable, again, &info));
		CUDA(cudaGraphDestroy(again));
	}
	CUDA(cudaGraphCreate(&again, 0));
	EXPECT(cudaGraphExecUpdate(executable, again, &info), cudaErrorGraphExecUpdateFailure);
	if (info.result != cudaGraphExecUpdateErrorTopologyChanged)
		FAIL("another shape is called %d", info.result);
	CUDA(cudaGraphDestroy(again));

	// As a child of another graph, twice.
	graph = capture(9);
	cudaGraphNode_t first, second;
	CUDA(cudaGraphCreate(&again, 0));
	CUDA(cudaGraphAddChildGraphNode(&first, again, nullptr, 0, graph));
	CUDA(cudaGraphAddChildGraphNode(&second, again, &first, 1, graph));
	CUDA(cudaGraphExecDestroy(executable));
	CUDA(cudaGraphInstantiate(&executable, again, 0));
	CUDA(cudaGraphLaunch(executable, stream));
	CUDA(cudaStreamSynchronize(stream));
	check("as a child", to_host(sum).data(), captured(9));
	CUDA(cudaGraphExecDestroy(executable));
	CUDA(cudaGraphDestroy(again));
	CUDA(cudaGraphDestroy(graph));
}

/// Memory that the graph itself allocates and frees.
static void with_memory()
{
	cudaGraph_t graph;
	cudaGraphExec_t executable;
	unsigned *scratch;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	CUDA(cudaMallocAsync(&scratch, COUNT * sizeof *scratch, stream));
	CUDA(cudaMemsetAsync(scratch, 0, COUNT * sizeof *scratch, stream));
	step<<<BLOCKS, THREADS, 0, stream>>>(scratch, 1, 13);
	CUDA(cudaMemcpyAsync(sum, scratch, COUNT * sizeof *sum, cudaMemcpyDeviceToDevice, stream));
	CUDA(cudaFreeAsync(scratch, stream));
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&executable, graph, 0));
	for (int launch = 0; launch < 2; launch++) {
		CUDA(cudaMemsetAsync(sum, 0, COUNT * sizeof *sum, stream));
		CUDA(cudaGraphLaunch(executable, stream));
		CUDA(cudaStreamSynchronize(stream));
		check("with its own memory", to_host(sum).data(), 13);
	}
	CUDA(cudaGraphExecDestroy(executable));
	CUDA(cudaGraphDestroy(graph));
}

static void refused()
{
	cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(1);
	cudaStreamCaptureStatus status;
	void *memory;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	EXPECT(cudaMalloc(&memory, 4), cudaErrorStreamCaptureUnsupported);
	CUDA(cudaStreamIsCapturing(stream, &status));
	if (status != cudaStreamCaptureStatusInvalidated)
		FAIL("cudaMalloc leaves the capture in state %d", status);
	EXPECT(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
	if (graph)
		FAIL("a capture that is void gives a graph");
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	CUDA(cudaEventRecord(forked, stream));
	CUDA(cudaStreamWaitEvent(side, forked, 0));
	step<<<BLOCKS, THREADS, 0, side>>>(a, 1, 1);
	EXPECT(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
	EXPECT(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
	step<<<BLOCKS, THREADS, 0, stream>>>(a, 1, 1);
	CUDA(cudaGetLastError());
	CUDA(cudaDeviceSynchronize());
}

int main()
{
	CUDA(cudaMalloc(&a, COUNT * sizeof *a));
	CUDA(cudaMalloc(&b, COUNT * sizeof *b));
	CUDA(cudaMalloc(&sum, COUNT * sizeof *sum));
	CUDA(cudaMallocHost(&host, COUNT * sizeof *host));
	CUDA(cudaMemset(sum, 0, COUNT * sizeof *sum));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
	CUDA(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
	CUDA(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
	CUDA(cudaDeviceSynchronize());
	by_hand();
	by_capture();
	with_memory();
	refused();
	CUDA(cudaFreeHost(host));
	for (unsigned *array : {a, b, sum})
		CUDA(cudaFree(array));
	std::printf("ok graphs: by hand, by capture, with memory\n");
}
