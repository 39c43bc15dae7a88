// Copies into shared memory run ahead of the computation: a pipeline of two stages, and a barrier
// that counts arrivals and copies.
#define PROGRAM "async_pipeline"
#include "check.h"

#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>

namespace cg = cooperative_groups;

constexpr int TILE = 128;

__global__ void by_pipeline(const int *in, long long *sums, int tiles)
{
	constexpr int STAGES = 2;
	__shared__ int tile[STAGES][TILE];
	__shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
	cg::thread_block block = cg::this_thread_block();
	auto pipeline = cuda::make_pipeline(block, &state);
	long long sum = 0;
	for (int use = 0, fetch = 0; use < tiles; use++) {
		for (; fetch < tiles && fetch < use + STAGES; fetch++) {
			pipeline.producer_acquire();
			cuda::memcpy_async(block, tile[fetch % STAGES], in + (fetch * gridDim.x + blockIdx.x) * TILE,
					   cuda::aligned_size_t<16>(sizeof tile[0]), pipeline);
			pipeline.producer_commit();
		}
		pipeline.consumer_wait();
		sum += static_cast<long long>(tile[use % STAGES][TILE - 1 - threadIdx.x]) * (use + 1);
		pipeline.consumer_release();
	}
	sums[blockIdx.x * TILE + threadIdx.x] = sum;
}

__global__ void by_barrier(const int *in, long long *sums, int tiles)
{
	__shared__ int tile[TILE];
#pragma nv_diag_suppress static_var_with_dynamic_init
	__shared__ cuda::barrier<cuda::thread_scope_block> barrier;
	cg::thread_block block = cg::this_thread_block();
	if (threadIdx.x == 0)
		init(&barrier, blockDim.x);
	block.sync();
	long long sum = 0;
	for (int use = 0; use < tiles; use++) {
		cuda::memcpy_async(block, tile, in + (use * gridDim.x + blockIdx.x) * TILE, sizeof tile, barrier);
		barrier.arrive_and_wait();
		sum += static_cast<long long>(tile[TILE - 1 - threadIdx.x]) * (use + 1);
		barrier.arrive_and_wait();
	}
	sums[blockIdx.x * TILE + threadIdx.x] = sum;
}

int main(int argc, char **argv)
{
	const int tiles = static_cast<int>(size_option(argc, argv, 6, 1, 1 << 12)), blocks = 5;
	std::vector<int> values(tiles * blocks * TILE);
	std::vector<long long> expected(blocks * TILE);
	for (size_t i = 0; i < values.size(); i++)
		values[i] = static_cast<int>(hash(i));
	for (int use = 0; use < tiles; use++)
		for (int b = 0; b < blocks; b++)
			for (int t = 0; t < TILE; t++)
				expected[b * TILE + t] +=
					static_cast<long long>(values[(use * blocks + b) * TILE + TILE - 1 - t]) * (use + 1);
	int *const in = to_device(values);
	long long *const sums = device_array<long long>(blocks * TILE);
	for (const auto kernel : {by_pipeline, by_barrier}) {
		CUDA(cudaMemset(sums, 0, blocks * TILE * sizeof(long long)));
		kernel<<<blocks, TILE>>>(in, sums, tiles);
		CUDA(cudaGetLastError());
		const std::vector<long long> result = to_host(sums, blocks * TILE);
		for (int i = 0; i < blocks * TILE; i++)
			if (result[i] != expected[i])
				FAIL("%s: sum %d is %lld instead of %lld", kernel == by_pipeline ? "pipeline" : "barrier",
				     i, result[i], expected[i]);
	}
	CUDA(cudaFree(in));
	CUDA(cudaFree(sums));
	std::printf("ok async_pipeline of %d tiles\n", tiles);
}
