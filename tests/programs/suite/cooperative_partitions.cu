// Cooperative groups whose members differ from lane to lane: votes, matches, reductions and scans of
// tiles smaller than a warp, binary and labelled partitions, and a loop that lanes leave one by one.
#define PROGRAM "cooperative_partitions"
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

struct Result {
	unsigned ballot, any, match, tile_xor, tile_scan;
	unsigned binary_size, binary_rank, binary_least;
	unsigned label_size, label_rank, label_sum;
	unsigned turns, left;
};

__global__ void partition(Result *results)
{
	auto block = cg::this_thread_block();
	const unsigned thread = block.thread_rank();
	auto eight = cg::tiled_partition<8>(block);
	auto sixteen = cg::tiled_partition<16>(block);
	Result result = {};
	result.ballot = sixteen.ballot(thread % 3 == 0);
	result.any = eight.any(thread % 32 == 11);
	result.match = sixteen.match_any(thread % 5);
	result.tile_xor = cg::reduce(sixteen, thread * 7919 % 101, cg::bit_xor<unsigned>());
	result.tile_scan = cg::exclusive_scan(eight, thread, cg::plus<unsigned>());

	auto half = cg::binary_partition(sixteen, thread % 5 < 2);
	result.binary_size = half.size();
	result.binary_rank = half.thread_rank();
	result.binary_least = cg::reduce(half, thread, cg::less<unsigned>());
	auto label = cg::labeled_partition(cg::tiled_partition<32>(block), thread % 3);
	result.label_size = label.size();
	result.label_rank = label.thread_rank();
	result.label_sum = cg::reduce(label, thread, cg::plus<unsigned>());

	// Lane k of a warp takes k % 7 turns; who is left is asked in each of them.
	unsigned turns = thread % 32 % 7;
	unsigned left = __ballot_sync(~0u, turns > 0);
	while (turns > 0) {
		result.turns++;
		result.left += __popc(left);
		turns--;
		left = __ballot_sync(left, turns > 0);
	}
	results[thread] = result;
}

static Result expected(unsigned thread)
{
	const unsigned eight = thread / 8 * 8, sixteen = thread / 16 * 16, warp = thread / 32 * 32;
	Result result = {};
	result.any = eight % 32 == 8;
	for (unsigned k = eight; k < thread; k++)
		result.tile_scan += k;
	for (unsigned k = sixteen; k < sixteen + 16; k++) {
		result.ballot |= (k % 3 == 0) << (k - sixteen);
		result.match |= (k % 5 == thread % 5) << (k - sixteen);
		result.tile_xor ^= k * 7919 % 101;
		if ((k % 5 < 2) == (thread % 5 < 2)) {
			if (result.binary_size++ == 0)
				result.binary_least = k;
			result.binary_rank += k < thread;
		}
	}
	for (unsigned k = warp; k < warp + 32; k++)
		if (k % 3 == thread % 3) {
			result.label_size++;
			result.label_rank += k < thread;
			result.label_sum += k;
		}
	result.turns = thread % 32 % 7;
	for (unsigned turn = 0; turn < result.turns; turn++)
		for (unsigned lane = 0; lane < 32; lane++)
			result.left += lane % 7 > turn;
	return result;
}

int main(int argc, char **argv)
{
	const unsigned threads = size_option(argc, argv, 96, 32, 1024) / 32 * 32;
	Result *device_results = device_array<Result>(threads);
	partition<<<1, threads>>>(device_results);
	CUDA(cudaGetLastError());
	const std::vector<Result> results = to_host(device_results, threads);
	for (unsigned thread = 0; thread < threads; thread++) {
		const Result want = expected(thread);
		for (size_t k = 0; k < sizeof(Result) / 4; k++) {
			const unsigned got = reinterpret_cast<const unsigned *>(&results[thread])[k];
			const unsigned right = reinterpret_cast<const unsigned *>(&want)[k];
			if (got != right)
				FAIL("thread %u, result %zu: %u instead of %u", thread, k, got, right);
		}
	}
	CUDA(cudaFree(device_results));
	std::printf("ok cooperative_partitions of %u threads\n", threads);
}
