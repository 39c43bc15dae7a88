// Histogram of bytes, once with atomics on shared memory per block and a final sum, once with
// atomics on global memory only, read four bytes at a time.
#define PROGRAM "histogram"
#include "check.h"

static const int BINS = 256;

__global__ void count_shared(const uint32_t *words, int count, unsigned *bins)
{
	__shared__ unsigned local[BINS];
	for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x)
		local[bin] = 0;
	__syncthreads();
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
		for (int shift = 0; shift < 32; shift += 8)
			atomicAdd(&local[words[i] >> shift & 0xff], 1);
	__syncthreads();
	for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x)
		if (local[bin])
			atomicAdd(&bins[bin], local[bin]);
}

__global__ void count_global(const uint32_t *words, int count, unsigned *bins)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		for (int shift = 0; shift < 32; shift += 8)
			atomicAdd(&bins[words[i] >> shift & 0xff], 1);
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 50000, 1, 1 << 28);
	std::vector<uint32_t> words(count);
	std::vector<unsigned> expected(BINS);
	for (int i = 0; i < count; i++) {
		words[i] = hash(i) & hash(i + count); // skewed towards few bits set
		for (int shift = 0; shift < 32; shift += 8)
			expected[words[i] >> shift & 0xff]++;
	}
	uint32_t *device_words = to_device(words);
	unsigned *bins = device_array<unsigned>(BINS);
	for (const char *way : {"shared", "global"}) {
		CUDA(cudaMemset(bins, 0, BINS * sizeof *bins));
		if (way[0] == 's')
			count_shared<<<8, 128>>>(device_words, count, bins);
		else
			count_global<<<(count + 127) / 128, 128>>>(device_words, count, bins);
		CUDA(cudaGetLastError());
		const std::vector<unsigned> counted = to_host(bins, BINS);
		for (int bin = 0; bin < BINS; bin++)
			if (counted[bin] != expected[bin])
				FAIL("%s atomics, bin %d: %u instead of %u", way, bin, counted[bin], expected[bin]);
	}
	CUDA(cudaFree(device_words));
	CUDA(cudaFree(bins));
	std::printf("ok histogram of %d bytes\n", 4 * count);
}
