// Least-significant-digit radix sort of (key, index) pairs, 4 bits a pass: count digits per
// block, scan the counts, scatter.  The sort must be stable, which the indices show.
#define PROGRAM "radix_sort"
#include "check.h"

#include <algorithm>

static const int THREADS = 128;
static const int DIGITS = 16;

__global__ void count_digits(const uint32_t *keys, int count, int shift, int *counts)
{
	__shared__ int tally[DIGITS];
	if (threadIdx.x < DIGITS)
		tally[threadIdx.x] = 0;
	__syncthreads();
	const int i = blockIdx.x * THREADS + threadIdx.x;
	if (i < count)
		atomicAdd(&tally[keys[i] >> shift & (DIGITS - 1)], 1);
	__syncthreads();
	if (threadIdx.x < DIGITS)
		counts[threadIdx.x * gridDim.x + blockIdx.x] = tally[threadIdx.x];
}

/// One block turns counts into exclusive sums in place.
__global__ void scan_counts(int *counts, int length)
{
	__shared__ int sums[THREADS];
	const int share = (length + THREADS - 1) / THREADS;
	const int first = min(length, static_cast<int>(threadIdx.x) * share), last = min(length, first + share);
	int sum = 0;
	for (int i = first; i < last; i++)
		sum += counts[i];
	sums[threadIdx.x] = sum;
	__syncthreads();
	for (int offset = 1; offset < THREADS; offset *= 2) {
		const int left = threadIdx.x >= offset ? sums[threadIdx.x - offset] : 0;
		__syncthreads();
		sums[threadIdx.x] += left;
		__syncthreads();
	}
	int before = threadIdx.x ? sums[threadIdx.x - 1] : 0;
	for (int i = first; i < last; i++) {
		const int here = counts[i];
		counts[i] = before;
		before += here;
	}
}

__global__ void scatter(const uint32_t *keys, const int *indices, int count, int shift, const int *offsets,
			uint32_t *keys_out, int *indices_out)
{
	__shared__ uint8_t digits[THREADS];
	const int i = blockIdx.x * THREADS + threadIdx.x;
	const int digit = i < count ? keys[i] >> shift & (DIGITS - 1) : DIGITS;
	digits[threadIdx.x] = digit;
	__syncthreads();
	if (i >= count)
		return;
	int rank = 0;
	for (int k = 0; k < threadIdx.x; k++)
		rank += digits[k] == digit;
	const int place = offsets[digit * gridDim.x + blockIdx.x] + rank;
	keys_out[place] = keys[i];
	indices_out[place] = indices[i];
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 20000, 1, 1 << 26);
	const int blocks = (count + THREADS - 1) / THREADS;
	std::vector<uint32_t> keys(count);
	std::vector<int> indices(count);
	for (int i = 0; i < count; i++) {
		// Few distinct keys in one half, many in the other: equal keys test stability.
		keys[i] = i % 2 ? hash(i) : hash(i) & 0xf00000ff;
		indices[i] = i;
	}
	uint32_t *key_buffers[2] = {to_device(keys), device_array<uint32_t>(count)};
	int *index_buffers[2] = {to_device(indices), device_array<int>(count)};
	int *counts = device_array<int>(blocks * DIGITS);
	int current = 0;
	for (int shift = 0; shift < 32; shift += 4, current ^= 1) {
		count_digits<<<blocks, THREADS>>>(key_buffers[current], count, shift, counts);
		CUDA(cudaGetLastError());
		scan_counts<<<1, THREADS>>>(counts, blocks * DIGITS);
		CUDA(cudaGetLastError());
		scatter<<<blocks, THREADS>>>(key_buffers[current], index_buffers[current], count, shift, counts,
					     key_buffers[current ^ 1], index_buffers[current ^ 1]);
		CUDA(cudaGetLastError());
	}

	std::stable_sort(indices.begin(), indices.end(), [&](int a, int b) { return keys[a] < keys[b]; });
	const std::vector<uint32_t> sorted_keys = to_host(key_buffers[current], count);
	const std::vector<int> sorted_indices = to_host(index_buffers[current], count);
	for (int i = 0; i < count; i++) {
		if (sorted_keys[i] != keys[indices[i]])
			FAIL("key %d: %08x instead of %08x", i, sorted_keys[i], keys[indices[i]]);
		if (sorted_indices[i] != indices[i])
			FAIL("not stable at %d: index %d instead of %d", i, sorted_indices[i], indices[i]);
	}
	for (int k = 0; k < 2; k++) {
		CUDA(cudaFree(key_buffers[k]));
		CUDA(cudaFree(index_buffers[k]));
	}
	CUDA(cudaFree(counts));
	std::printf("ok radix_sort of %d pairs, stable\n", count);
}
