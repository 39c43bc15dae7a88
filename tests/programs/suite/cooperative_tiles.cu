// Cooperative groups within a block: tiles of all sizes, coalesced groups of a diverged warp,
// labelled partitions by hand, shuffles, votes and reductions of the group.
#define PROGRAM "cooperative_tiles"
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

template <int SIZE> __device__ static unsigned tile_sum(unsigned value)
{
	auto tile = cg::tiled_partition<SIZE>(cg::this_thread_block());
	unsigned sum = value;
	for (int offset = SIZE / 2; offset > 0; offset /= 2)
		sum += tile.shfl_xor(sum, offset);
	return sum + 1000u * tile.thread_rank() + 100000u * tile.meta_group_rank();
}

struct Result {
	unsigned sums[6], ranks, sizes, leader, any, reduced;
};

__global__ void group(Result *results)
{
	cg::thread_block block = cg::this_thread_block();
	const unsigned thread = block.thread_rank();
	Result result = {};
	result.sums[0] = tile_sum<1>(thread);
	result.sums[1] = tile_sum<2>(thread);
	result.sums[2] = tile_sum<4>(thread);
	result.sums[3] = tile_sum<8>(thread);
	result.sums[4] = tile_sum<16>(thread);
	result.sums[5] = tile_sum<32>(thread);
	if (thread % 3 == 1) {
		cg::coalesced_group active = cg::coalesced_threads();
		result.ranks = active.thread_rank();
		result.sizes = active.size();
		result.leader = active.shfl(thread, 0);
		result.any = active.any(thread % 32 == 4);
	}
	block.sync();
	auto warp = cg::tiled_partition<32>(block);
	result.reduced = cg::reduce(warp, thread * thread, cg::greater<unsigned>());
	results[thread] = result;
}

int main(int argc, char **argv)
{
	const unsigned threads = size_option(argc, argv, 96, 32, 1024) / 32 * 32;
	Result *device_results = device_array<Result>(threads);
	group<<<1, threads>>>(device_results);
	CUDA(cudaGetLastError());
	const std::vector<Result> results = to_host(device_results, threads);
	for (unsigned thread = 0; thread < threads; thread++) {
		const Result &result = results[thread];
		const unsigned warp = thread / 32 * 32;
		for (unsigned k = 0, size = 1; k < 6; k++, size *= 2) {
			const unsigned first = thread / size * size;
			const unsigned expected = size * first + size * (size - 1) / 2 + 1000u * (thread - first) +
						  100000u * (thread / size);
			if (result.sums[k] != expected)
				FAIL("thread %u, tile of %u: %u instead of %u", thread, size, result.sums[k], expected);
		}
		unsigned size = 0, rank = 0, leader = 0, any = 0;
		for (unsigned other = warp; other < warp + 32; other++)
			if (other % 3 == 1) {
				leader = size++ ? leader : other;
				rank += other < thread;
				any |= other % 32 == 4;
			}
		if (thread % 3 == 1 && (result.sizes != size || result.ranks != rank || result.leader != leader ||
					result.any != any))
			FAIL("thread %u, coalesced group: size %u rank %u leader %u any %u instead of %u %u %u %u",
			     thread, result.sizes, result.ranks, result.leader, result.any, size, rank, leader, any);
		if (result.reduced != (warp + 31) * (warp + 31))
			FAIL("thread %u: maximum %u instead of %u", thread, result.reduced, (warp + 31) * (warp + 31));
	}
	CUDA(cudaFree(device_results));
	std::printf("ok cooperative_tiles of %u threads\n", threads);
}
