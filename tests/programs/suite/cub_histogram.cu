// CUB's histograms: bins few enough for shared memory, and more than that.  Their grid is
// what occupancy allows, and kernels of many registers state their launch bounds.
#define PROGRAM "cub_histogram"
#include "check.h"

#include <cub/device/device_histogram.cuh>

static std::vector<int> histogram(const int *samples, int count, int bins)
{
	int *counts = device_array<int>(bins);
	void *storage = nullptr;
	size_t size = 0;
	CUDA(cub::DeviceHistogram::HistogramEven(storage, size, samples, counts, bins + 1, 0, bins, count));
	CUDA(cudaMalloc(&storage, size));
	CUDA(cub::DeviceHistogram::HistogramEven(storage, size, samples, counts, bins + 1, 0, bins, count));
	std::vector<int> result = to_host(counts, bins);
	CUDA(cudaFree(storage));
	CUDA(cudaFree(counts));
	return result;
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 30000, 1, 1 << 28);
	std::vector<int> samples(count);

	for (int bins : {64, 977}) {
		std::vector<int> expected(bins);
		for (int i = 0; i < count; i++)
			expected[samples[i] = hash(i) % bins]++;
		int *in = to_device(samples);
		if (histogram(in, count, bins) != expected)
			FAIL("%d bins", bins);
		CUDA(cudaFree(in));
	}
	std::printf("ok cub_histogram of %d numbers\n", count);
}
