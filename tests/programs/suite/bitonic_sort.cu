// Bitonic sort (Batcher, 1968): steps that stay within a block run in shared memory, the wider
// ones as one compare-and-exchange launch each.
#define PROGRAM "bitonic_sort"
#include "check.h"

#include <algorithm>

static const int THREADS = 256;
static const int TILE = 2 * THREADS;

__device__ static void order(int &a, int &b, bool ascending)
{
	if ((a > b) == ascending) {
		const int kept = a;
		a = b;
		b = kept;
	}
}

/// Index of the left partner of pair `pair` when partners lie `stride` apart.
__device__ static int left_of(int pair, int stride)
{
	return pair / stride * 2 * stride + pair % stride;
}

__global__ void sort_tiles(int *values, int first_run, int last_run)
{
	__shared__ int tile[TILE];
	const int base = blockIdx.x * TILE;
	tile[threadIdx.x] = values[base + threadIdx.x];
	tile[threadIdx.x + THREADS] = values[base + threadIdx.x + THREADS];
	for (int run = first_run; run <= last_run; run *= 2)
		for (int stride = min(run, TILE) / 2; stride > 0; stride /= 2) {
			__syncthreads();
			const int left = left_of(threadIdx.x, stride);
			order(tile[left], tile[left + stride], ((base + left) & run) == 0);
		}
	__syncthreads();
	values[base + threadIdx.x] = tile[threadIdx.x];
	values[base + threadIdx.x + THREADS] = tile[threadIdx.x + THREADS];
}

__global__ void exchange(int *values, int run, int stride)
{
	const int left = left_of(blockIdx.x * THREADS + threadIdx.x, stride);
	order(values[left], values[left + stride], (left & run) == 0);
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 10000, 1, 1 << 26);
	int padded = TILE;
	while (padded < count)
		padded *= 2;
	std::vector<int> values(padded, INT32_MAX);
	for (int i = 0; i < count; i++)
		values[i] = static_cast<int>(hash(i));
	int *device_values = to_device(values);

	sort_tiles<<<padded / TILE, THREADS>>>(device_values, 2, TILE);
	CUDA(cudaGetLastError());
	for (int run = 2 * TILE; run <= padded; run *= 2) {
		for (int stride = run / 2; stride >= TILE; stride /= 2) {
			exchange<<<padded / TILE, THREADS>>>(device_values, run, stride);
			CUDA(cudaGetLastError());
		}
		sort_tiles<<<padded / TILE, THREADS>>>(device_values, run, run);
		CUDA(cudaGetLastError());
	}

	const std::vector<int> sorted = to_host(device_values, padded);
	std::sort(values.begin(), values.end());
	for (int i = 0; i < padded; i++)
		if (sorted[i] != values[i])
			FAIL("element %d: %d instead of %d", i, sorted[i], values[i]);
	CUDA(cudaFree(device_values));
	std::printf("ok bitonic_sort of %d numbers, padded to %d\n", count, padded);
}
