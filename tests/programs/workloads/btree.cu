// B+ tree: point and range queries on a tree of fan-out 32 that lies level by level in arrays; a
// warp follows one query down, its lanes compare one node's keys at a time.  The keys are even,
// half of the queries odd.  `--size` is the number of keys, `--iterations` of batches of queries.
#define PROGRAM "btree"
#include "workload.h"

#include <algorithm>

static const int FANOUT = 32;
static const int MAX_LEVELS = 7;
static const int QUERIES = 2048;
static const unsigned PADDING = ~0u; // larger than every key

/// Level 0 holds the keys themselves, level l + 1 the first key of every node of level l; a node
/// is FANOUT neighbours, and the last level is one node.
struct Tree {
	const unsigned *level[MAX_LEVELS];
	int levels, keys;
};

struct Query {
	unsigned low, high; // high: for ranges
};

struct Answer {
	int position; // of `low` among the keys, or -1
	int inside;   // keys from low to high
};

/// How many keys are at most `key`; a whole warp calls it with the same key.
__device__ static int rank_of(const Tree &tree, unsigned key)
{
	const int lane = threadIdx.x % 32;
	int node = 0;
	for (int level = tree.levels - 1; level >= 0; level--) {
		const unsigned here = tree.level[level][node * FANOUT + lane];
		const int at_most = __popc(__ballot_sync(0xffffffffu, here <= key && here != PADDING));
		if (at_most == 0)
			return 0;
		node = node * FANOUT + at_most - 1;
	}
	return node + 1;
}

__global__ void search(Tree tree, const Query *queries, int count, Answer *answers)
{
	const int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
	if (i >= count)
		return;
	const Query query = queries[i];
	const int rank = rank_of(tree, query.low), end = rank_of(tree, query.high);
	if (threadIdx.x % 32 == 0) {
		const bool found = rank > 0 && tree.level[0][rank - 1] == query.low;
		answers[i] = {found ? rank - 1 : -1, end - rank + found};
	}
}

int main(int argc, char **argv)
{
	const Options options = parse(argc, argv, { 20000, 3 }, 32, 100000000);
	Stopwatch watch;
	std::vector<unsigned> keys(options.size);
	for (int i = 0; i < options.size; i++)
		keys[i] = 10u * i + 2 * (hash(i) % 5);

	Tree tree = {};
	tree.keys = options.size;
	std::vector<unsigned> level = keys;
	for (;;) {
		const size_t nodes = (level.size() + FANOUT - 1) / FANOUT;
		level.resize(nodes * FANOUT, PADDING);
		tree.level[tree.levels++] = to_device(level);
		if (nodes == 1)
			break;
		std::vector<unsigned> above(nodes);
		for (size_t i = 0; i < nodes; i++)
			above[i] = level[i * FANOUT];
		level = above;
	}

	Query *device_queries = device_array<Query>(QUERIES);
	Answer *device_answers = device_array<Answer>(QUERIES);
	for (int iteration = 0; iteration < options.iterations; iteration++) {
		std::vector<Query> queries(QUERIES);
		for (int i = 0; i < QUERIES; i++) {
			const uint32_t random = hash(iteration * QUERIES + i);
			const unsigned low = i % 2 ? keys[random % options.size] : random % (10u * options.size) | 1;
			queries[i] = {low, low + hash(~random) % 2000};
		}
		CUDA(cudaMemcpy(device_queries, queries.data(), QUERIES * sizeof(Query), cudaMemcpyHostToDevice));
		watch.start();
		search<<<QUERIES / 4, 128>>>(tree, device_queries, QUERIES, device_answers);
		CUDA(cudaGetLastError());
		watch.stop();
		const std::vector<Answer> answers = to_host(device_answers, QUERIES);
		for (int i = 0; i < QUERIES; i++) {
			const auto low = std::lower_bound(keys.begin(), keys.end(), queries[i].low);
			const auto high = std::upper_bound(keys.begin(), keys.end(), queries[i].high);
			const int position = low != keys.end() && *low == queries[i].low ? low - keys.begin() : -1;
			if (answers[i].position != position || answers[i].inside != high - low)
				FAIL("query %u to %u: position %d, %d keys instead of %d, %d", queries[i].low,
				     queries[i].high, answers[i].position, answers[i].inside, position,
				     static_cast<int>(high - low));
		}
	}
	for (int k = 0; k < tree.levels; k++)
		CUDA(cudaFree(const_cast<unsigned *>(tree.level[k])));
	CUDA(cudaFree(device_queries));
	CUDA(cudaFree(device_answers));
	report(options, watch);
}
