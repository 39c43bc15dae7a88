// Connected components by concurrent union-find: edges hook the larger root under the smaller
// with atomicCAS, then paths are compressed.  Each component ends labelled with its least node.
#define PROGRAM "connected_components"
#include "check.h"

#include <numeric>

/// Parents are read through volatile: other threads may lower them at any moment.
__device__ static int root_of(volatile int *parents, int node)
{
	while (parents[node] != node)
		node = parents[node];
	return node;
}

__global__ void unite(int *parents, const int2 *edges, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	int a = edges[i].x, b = edges[i].y;
	for (;;) {
		a = root_of(parents, a);
		b = root_of(parents, b);
		if (a == b)
			return;
		const int low = min(a, b), high = max(a, b);
		if (atomicCAS(&parents[high], high, low) == high)
			return;
	}
}

__global__ void compress(volatile int *parents, int nodes)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < nodes)
		parents[i] = root_of(parents, i);
}

int main(int argc, char **argv)
{
	const int nodes = size_option(argc, argv, 20000, 2, 1 << 24);
	const int count = nodes / 2;
	std::vector<int2> edges(count);
	for (int i = 0; i < count; i++)
		edges[i] = make_int2(hash(2 * i) % nodes, hash(2 * i + 1) % nodes);
	std::vector<int> expected(nodes);
	std::iota(expected.begin(), expected.end(), 0);
	int *parents = to_device(expected);
	int2 *device_edges = to_device(edges);
	unite<<<(count + 127) / 128, 128>>>(parents, device_edges, count);
	CUDA(cudaGetLastError());
	compress<<<(nodes + 127) / 128, 128>>>(parents, nodes);
	CUDA(cudaGetLastError());

	const auto root = [&](int node) {
		while (expected[node] != node)
			node = expected[node] = expected[expected[node]];
		return node;
	};
	for (const int2 &edge : edges) {
		const int a = root(edge.x), b = root(edge.y);
		expected[a > b ? a : b] = a < b ? a : b;
	}
	const std::vector<int> labels = to_host(parents, nodes);
	int components = 0;
	for (int node = 0; node < nodes; node++) {
		if (labels[node] != root(node))
			FAIL("node %d: component %d instead of %d", node, labels[node], root(node));
		components += labels[node] == node;
	}
	CUDA(cudaFree(parents));
	CUDA(cudaFree(device_edges));
	std::printf("ok connected_components of %d nodes, %d edges: %d\n", nodes, count, components);
}
