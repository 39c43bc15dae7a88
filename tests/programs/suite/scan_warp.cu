// Inclusive prefix sum in one pass: warps scan by shuffles, blocks publish their total and learn
// what lies before them by looking back over their predecessors (Merrill and Garland,
// "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016).
//
// A block takes its number from a counter when it starts, so each waits only for blocks that
// already run; the program ends on any device, however many blocks it runs at a time.
#define PROGRAM "scan_warp"
#include "check.h"

static const int THREADS = 256;
enum : unsigned { EMPTY, TOTAL, PREFIX };

__global__ void scan(const uint32_t *in, uint32_t *out, int count, unsigned *next_block,
		     unsigned long long *published)
{
	__shared__ uint32_t warp_sums[THREADS / 32];
	__shared__ unsigned block;
	__shared__ uint32_t before;
	if (threadIdx.x == 0)
		block = atomicAdd(next_block, 1);
	__syncthreads();

	const int i = block * THREADS + threadIdx.x;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t sum = i < count ? in[i] : 0;
	for (int offset = 1; offset < 32; offset *= 2) {
		const uint32_t left = __shfl_up_sync(0xffffffffu, sum, offset);
		if (lane >= offset)
			sum += left;
	}
	if (lane == 31)
		warp_sums[warp] = sum;
	__syncthreads();
	if (warp == 0) {
		uint32_t total = lane < THREADS / 32 ? warp_sums[lane] : 0;
		for (int offset = 1; offset < THREADS / 32; offset *= 2) {
			const uint32_t left = __shfl_up_sync(0xffffffffu, total, offset);
			if (lane >= offset)
				total += left;
		}
		if (lane < THREADS / 32)
			warp_sums[lane] = total;
	}
	__syncthreads();

	// State and value travel in one 64-bit word, so neither is seen without the other.
	if (threadIdx.x == 0) {
		const uint32_t total = warp_sums[THREADS / 32 - 1];
		uint32_t prefix = 0;
		atomicExch(&published[block], static_cast<unsigned long long>(TOTAL) << 32 | total);
		for (int previous = static_cast<int>(block) - 1; previous >= 0;) {
			const unsigned long long word = atomicAdd(&published[previous], 0ull);
			if (word >> 32 == EMPTY)
				continue;
			prefix += static_cast<uint32_t>(word);
			if (word >> 32 == PREFIX)
				break;
			previous--;
		}
		atomicExch(&published[block], static_cast<unsigned long long>(PREFIX) << 32 | (prefix + total));
		before = prefix;
	}
	__syncthreads();
	if (i < count)
		out[i] = before + (warp > 0 ? warp_sums[warp - 1] : 0) + sum;
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 60007, 1, 1 << 28);
	const int blocks = (count + THREADS - 1) / THREADS;
	std::vector<uint32_t> values(count);
	for (int i = 0; i < count; i++)
		values[i] = hash(i) >> 8;
	uint32_t *in = to_device(values);
	uint32_t *out = device_array<uint32_t>(count);
	unsigned *next_block = device_array<unsigned>(1);
	auto *published = device_array<unsigned long long>(blocks);
	CUDA(cudaMemset(next_block, 0, sizeof *next_block));
	CUDA(cudaMemset(published, 0, blocks * sizeof *published));
	scan<<<blocks, THREADS>>>(in, out, count, next_block, published);
	CUDA(cudaGetLastError());

	const std::vector<uint32_t> sums = to_host(out, count);
	uint32_t expected = 0;
	for (int i = 0; i < count; i++) {
		expected += values[i];
		if (sums[i] != expected)
			FAIL("sum up to element %d: %u instead of %u", i, sums[i], expected);
	}
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	CUDA(cudaFree(next_block));
	CUDA(cudaFree(published));
	std::printf("ok scan_warp of %d numbers in %d blocks: total %u\n", count, blocks, expected);
}
