// Breadth-first search of a random graph in compressed rows, level by level, with a frontier
// queue that atomics fill.
#define PROGRAM "bfs"
#include "check.h"

#include <queue>
#include <utility>

__global__ void expand(const int *rows, const int *columns, const int *frontier, int frontier_size, int *levels,
		       int level, int *next, int *next_size)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= frontier_size)
		return;
	const int node = frontier[i];
	for (int edge = rows[node]; edge < rows[node + 1]; edge++)
		if (atomicCAS(&levels[columns[edge]], -1, level) == -1)
			next[atomicAdd(next_size, 1)] = columns[edge];
}

int main(int argc, char **argv)
{
	const int nodes = size_option(argc, argv, 20000, 1, 1 << 24);
	std::vector<int> rows(1, 0), columns;
	for (int node = 0; node < nodes; node++) {
		const uint32_t degree = node == 0 ? 4 : hash(node) % 5;
		for (uint32_t k = 0; k < degree; k++)
			columns.push_back(hash(node * 8 + k + 1) % nodes);
		rows.push_back(static_cast<int>(columns.size()));
	}
	columns.push_back(0); // an array of at least one element, also when there is no edge

	std::vector<int> expected(nodes, -1);
	std::queue<int> open;
	expected[0] = 0;
	open.push(0);
	int reached = 0;
	for (; !open.empty(); open.pop(), reached++) {
		const int node = open.front();
		for (int edge = rows[node]; edge < rows[node + 1]; edge++)
			if (expected[columns[edge]] == -1) {
				expected[columns[edge]] = expected[node] + 1;
				open.push(columns[edge]);
			}
	}

	std::vector<int> levels(nodes, -1);
	levels[0] = 0;
	int *device_rows = to_device(rows), *device_columns = to_device(columns), *device_levels = to_device(levels);
	int *frontier = to_device(std::vector<int>(nodes, 0)), *next = device_array<int>(nodes);
	int *next_size = device_array<int>(1);
	int depth = 0;
	for (int size = 1; size > 0; std::swap(frontier, next)) {
		CUDA(cudaMemset(next_size, 0, sizeof *next_size));
		expand<<<(size + 127) / 128, 128>>>(device_rows, device_columns, frontier, size, device_levels, ++depth,
						    next, next_size);
		CUDA(cudaGetLastError());
		size = to_host(next_size, 1)[0];
	}
	levels = to_host(device_levels, nodes);
	for (int node = 0; node < nodes; node++)
		if (levels[node] != expected[node])
			FAIL("node %d: level %d instead of %d", node, levels[node], expected[node]);
	for (int *array : {device_rows, device_columns, device_levels, frontier, next, next_size})
		CUDA(cudaFree(array));
	std::printf("ok bfs of %d nodes, %d edges: %d reached in %d levels\n", nodes, rows.back(), reached, depth - 1);
}
