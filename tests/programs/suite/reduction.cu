// Sum and maximum of 32-bit numbers in three ways: a tree in shared memory, warp shuffles, and
// atomics on global memory.  Sums are kept in 64 bits, so every way gives the same number.
#define PROGRAM "reduction"
#include "check.h"

static const int THREADS = 256;

__global__ void sum_by_tree(const uint32_t *values, int count, unsigned long long *sums)
{
	__shared__ unsigned long long partial[THREADS];
	unsigned long long sum = 0;
	for (int i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS)
		sum += values[i];
	partial[threadIdx.x] = sum;
	__syncthreads();
	for (int half = THREADS / 2; half > 0; half /= 2) {
		if (threadIdx.x < half)
			partial[threadIdx.x] += partial[threadIdx.x + half];
		__syncthreads();
	}
	if (threadIdx.x == 0)
		sums[blockIdx.x] = partial[0];
}

__global__ void sum_by_shuffle(const uint32_t *values, int count, unsigned long long *sums)
{
	__shared__ unsigned long long partial[THREADS / 32];
	unsigned long long sum = 0;
	for (int i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS)
		sum += values[i];
	for (int offset = 16; offset > 0; offset /= 2)
		sum += __shfl_down_sync(0xffffffffu, sum, offset);
	if (threadIdx.x % 32 == 0)
		partial[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x < 32) {
		sum = threadIdx.x < THREADS / 32 ? partial[threadIdx.x] : 0;
		for (int offset = THREADS / 64; offset > 0; offset /= 2)
			sum += __shfl_down_sync(0xffffffffu, sum, offset);
		if (threadIdx.x == 0)
			sums[blockIdx.x] = sum;
	}
}

__global__ void sum_by_atomics(const uint32_t *values, int count, unsigned long long *sum, uint32_t *maximum)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count) {
		atomicAdd(sum, static_cast<unsigned long long>(values[i]));
		atomicMax(maximum, values[i]);
	}
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 100003, 1, 1 << 28);
	const int blocks = 13;

	std::vector<uint32_t> values(count);
	unsigned long long expected = 0;
	uint32_t expected_maximum = 0;
	for (int i = 0; i < count; i++) {
		values[i] = hash(i + 1);
		expected += values[i];
		expected_maximum = values[i] > expected_maximum ? values[i] : expected_maximum;
	}
	uint32_t *device_values = to_device(values);
	auto *sums = device_array<unsigned long long>(blocks);

	for (auto kernel : {sum_by_tree, sum_by_shuffle}) {
		kernel<<<blocks, THREADS>>>(device_values, count, sums);
		CUDA(cudaGetLastError());
		unsigned long long sum = 0;
		for (unsigned long long partial : to_host(sums, blocks))
			sum += partial;
		if (sum != expected)
			FAIL("sum by %s: %llu instead of %llu", kernel == sum_by_tree ? "tree" : "shuffle", sum, expected);
	}

	uint32_t *maximum = device_array<uint32_t>(1);
	CUDA(cudaMemset(sums, 0, sizeof *sums));
	CUDA(cudaMemset(maximum, 0, sizeof *maximum));
	sum_by_atomics<<<(count + THREADS - 1) / THREADS, THREADS>>>(device_values, count, sums, maximum);
	CUDA(cudaGetLastError());
	const unsigned long long sum = to_host(sums, 1)[0];
	if (sum != expected)
		FAIL("sum by atomics: %llu instead of %llu", sum, expected);
	if (to_host(maximum, 1)[0] != expected_maximum)
		FAIL("maximum: %u instead of %u", to_host(maximum, 1)[0], expected_maximum);

	CUDA(cudaFree(device_values));
	CUDA(cudaFree(sums));
	CUDA(cudaFree(maximum));
	std::printf("ok reduction of %d numbers: sum %llu, maximum %u\n", count, expected, expected_maximum);
}
