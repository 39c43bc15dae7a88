// Sum in one launch: every block publishes its sum behind a __threadfence and takes a ticket; the
// block with the last ticket adds them up and resets the counter for the next launch.
#define PROGRAM "last_block"
#include "check.h"

static const int THREADS = 128;

__device__ unsigned tickets;

__device__ static unsigned block_sum(unsigned value)
{
	__shared__ unsigned partial[THREADS / 32];
	value += __syncthreads_count(0); // none: the barrier's count adds nothing
	for (int offset = 16; offset > 0; offset /= 2)
		value += __shfl_xor_sync(0xffffffffu, value, offset);
	if (threadIdx.x % 32 == 0)
		partial[threadIdx.x / 32] = value;
	__syncthreads();
	unsigned sum = 0;
	for (unsigned part : partial)
		sum += part;
	return sum;
}

__global__ void sum(const unsigned *values, int count, volatile unsigned *block_sums, unsigned *total)
{
	bool last = false;
	const int i = blockIdx.x * THREADS + threadIdx.x;
	const unsigned own = block_sum(i < count ? values[i] : 0);
	if (threadIdx.x == 0) {
		block_sums[blockIdx.x] = own;
		__threadfence();
		last = atomicInc(&tickets, gridDim.x - 1) == gridDim.x - 1;
	}
	if (!__syncthreads_or(last))
		return;
	unsigned rest = 0;
	for (int block = threadIdx.x; block < gridDim.x; block += THREADS)
		rest += block_sums[block];
	rest = block_sum(rest);
	if (threadIdx.x == 0)
		*total = rest;
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 50001, 1, 1 << 28), blocks = (count + THREADS - 1) / THREADS;
	std::vector<unsigned> values(count);
	unsigned expected = 0;
	for (int i = 0; i < count; i++)
		expected += values[i] = hash(i);
	unsigned *device_values = to_device(values), *block_sums = device_array<unsigned>(blocks);
	unsigned *total = device_array<unsigned>(1);
	for (int launch = 0; launch < 3; launch++) {
		CUDA(cudaMemset(total, 0, sizeof *total));
		sum<<<blocks, THREADS>>>(device_values, count, block_sums, total);
		CUDA(cudaGetLastError());
		if (to_host(total, 1)[0] != expected)
			FAIL("launch %d: %u instead of %u", launch, to_host(total, 1)[0], expected);
	}
	for (unsigned *array : {device_values, block_sums, total})
		CUDA(cudaFree(array));
	std::printf("ok last_block of %d numbers in %d blocks\n", count, blocks);
}
