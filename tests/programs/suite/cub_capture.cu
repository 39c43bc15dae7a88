// CUB in a captured stream: scan, sort and reduce, which launch many kernels with
// attributes and scratch memory, become a graph that gives the CPU's results for other input again.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cub/cub.cuh>
#include <numeric>
#include <vector>

#define FAIL(...) (std::printf("FAIL cub_capture " __VA_ARGS__), std::puts(""), std::exit(1))

#define CUDA(call)                                                                 \
	do {                                                                       \
		if (const cudaError_t error = (call))                              \
			FAIL("%s: %s", #call, cudaGetErrorString(error));          \
	} while (0)

/// A bijective mix of 32 bits (lowbias32, C. Wellons, "Prospecting for Hash Functions", 2018).
static inline uint32_t hash(uint32_t x)
{
	x = (x ^ (x >> 16)) * 0x7feb352du;
	x = (x ^ (x >> 15)) * 0x846ca68bu;
	return x ^ (x >> 16);
}

static const int COUNT = 50000;

int main()
{
	const size_t bytes = COUNT * sizeof(uint32_t);
	uint32_t *input, *sorted, *scanned, *sum;
	size_t sort_bytes = 0, scan_bytes = 0, sum_bytes = 0;
	void *scratch;
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t executable;

	CUDA(cudaMalloc(&input, bytes));
	CUDA(cudaMalloc(&sorted, bytes));
	CUDA(cudaMalloc(&scanned, bytes));
	CUDA(cudaMalloc(&sum, sizeof *sum));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cub::DeviceRadixSort::SortKeys(nullptr, sort_bytes, input, sorted, COUNT, 0, 32, stream));
	CUDA(cub::DeviceScan::InclusiveSum(nullptr, scan_bytes, sorted, scanned, COUNT, stream));
	CUDA(cub::DeviceReduce::Sum(nullptr, sum_bytes, scanned, sum, COUNT, stream));
	CUDA(cudaMalloc(&scratch, std::max({sort_bytes, scan_bytes, sum_bytes})));

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	CUDA(cub::DeviceRadixSort::SortKeys(scratch, sort_bytes, input, sorted, COUNT, 0, 32, stream));
	CUDA(cub::DeviceScan::InclusiveSum(scratch, scan_bytes, sorted, scanned, COUNT, stream));
	CUDA(cub::DeviceReduce::Sum(scratch, sum_bytes, scanned, sum, COUNT, stream));
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&executable, graph, 0));

	for (uint32_t seed = 1; seed <= 2; seed++) {
		std::vector<uint32_t> values(COUNT), found(COUNT);
		for (int i = 0; i < COUNT; i++)
			values[i] = hash(seed * COUNT + i);
		CUDA(cudaMemcpyAsync(input, values.data(), bytes, cudaMemcpyHostToDevice, stream));
		CUDA(cudaGraphLaunch(executable, stream));
		CUDA(cudaMemcpyAsync(found.data(), scanned, bytes, cudaMemcpyDeviceToHost, stream));
		uint32_t total = 0;
		CUDA(cudaMemcpyAsync(&total, sum, sizeof total, cudaMemcpyDeviceToHost, stream));
		CUDA(cudaStreamSynchronize(stream));
		std::sort(values.begin(), values.end());
		std::partial_sum(values.begin(), values.end(), values.begin());
		for (int i = 0; i < COUNT; i++)
			if (found[i] != values[i])
				FAIL("seed %u, element %d: %u instead of %u", seed, i, found[i], values[i]);
		const uint32_t expected = std::accumulate(values.begin(), values.end(), 0u);
		if (total != expected)
			FAIL("seed %u, sum %u instead of %u", seed, total, expected);
	}
	CUDA(cudaGraphExecDestroy(executable));
	CUDA(cudaGraphDestroy(graph));
	std::printf("ok cub_capture: %d elements, twice\n", COUNT);
}
