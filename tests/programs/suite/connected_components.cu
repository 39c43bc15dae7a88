// Connected components by concurrent union-find: edges hook the larger root under the smaller
// with atomicCAS, then paths are compressed.  Each component ends labelled with its least node.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#define FAIL(...) (std::printf("FAIL connected_components " __VA_ARGS__), std::puts(""), std::exit(1))

#define CUDA(call)                                                                 \
	do {                                                                       \
		if (const cudaError_t error = (call))                              \
			FAIL("%s: %s", #call, cudaGetErrorString(error));          \
	} while (0)

/// The N of `--size N`, or `size`; ends the program when N is not from `least` to `most`.
static long size_option(int argc, char **argv, long size, long least, long most)
{
	if (argc == 1)
		return size;
	if (argc != 3 || std::strcmp(argv[1], "--size"))
		FAIL("does not know its arguments; usage: %s [--size N]", argv[0]);
	char *end;
	size = std::strtol(argv[2], &end, 10);
	if (*end || end == argv[2] || size < least || size > most)
		FAIL("--size %s: N must be from %ld to %ld", argv[2], least, most);
	return size;
}

template <typename T> static T *device_array(size_t count)
{
	T *array = nullptr;
	CUDA(cudaMalloc(&array, count * sizeof(T)));
	return array;
}

template <typename T> static T *to_device(const std::vector<T> &values)
{
	T *array = device_array<T>(values.size());
	CUDA(cudaMemcpy(array, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
	return array;
}

template <typename T> static std::vector<T> to_host(const T *array, size_t count)
{
	std::vector<T> values(count);
	CUDA(cudaMemcpy(values.data(), array, count * sizeof(T), cudaMemcpyDeviceToHost));
	return values;
}

/// A bijective mix of 32 bits (lowbias32, C. Wellons, "Prospecting for Hash Functions", 2018).
__host__ __device__ static inline uint32_t hash(uint32_t x)
{
	x = (x ^ (x >> 16)) * 0x7feb352du;
	x = (x ^ (x >> 15)) * 0x846ca68bu;
	return x ^ (x >> 16);
}

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
