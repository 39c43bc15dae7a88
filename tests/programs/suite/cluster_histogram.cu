// A histogram that is spread over the shared memory of a cluster of blocks, which all of them
// update; its size is given at the launch.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cooperative_groups.h>

#define FAIL(...) (std::printf("FAIL cluster_histogram " __VA_ARGS__), std::puts(""), std::exit(1))

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

namespace cg = cooperative_groups;

__global__ void histogram(const unsigned *values, unsigned *totals, int count, int bins)
{
	extern __shared__ unsigned part[];
	cg::cluster_group cluster = cg::this_cluster();
	const int own = bins / cluster.num_blocks();
	for (int i = threadIdx.x; i < own; i += blockDim.x)
		part[i] = 0;
	cluster.sync();
	for (int i = cg::this_grid().thread_rank(); i < count; i += cg::this_grid().size()) {
		const unsigned bin = values[i] % bins;
		atomicAdd(cluster.map_shared_rank(part, bin / own) + bin % own, 1u);
	}
	cluster.sync();
	for (int i = threadIdx.x; i < own; i += blockDim.x)
		atomicAdd(&totals[cluster.block_rank() * own + i], part[i]);
}

int main(int argc, char **argv)
{
	const int count = static_cast<int>(size_option(argc, argv, 30000, 1, 1 << 26)), bins = 512;
	std::vector<unsigned> values(count), expected(bins);
	for (int i = 0; i < count; i++) {
		values[i] = hash(i) >> 3;
		expected[values[i] % bins]++;
	}
	unsigned *const in = to_device(values), *const totals = device_array<unsigned>(bins);
	for (int cluster = 1; cluster <= 8; cluster *= 2) {
		CUDA(cudaMemset(totals, 0, bins * sizeof(unsigned)));
		cudaLaunchAttribute attribute = {};
		attribute.id = cudaLaunchAttributeClusterDimension;
		attribute.val.clusterDim.x = cluster;
		attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
		cudaLaunchConfig_t config = {};
		config.gridDim = dim3(16);
		config.blockDim = dim3(128);
		config.dynamicSmemBytes = bins / cluster * sizeof(unsigned);
		config.attrs = &attribute;
		config.numAttrs = 1;
		int active = 0;
		CUDA(cudaOccupancyMaxActiveClusters(&active, histogram, &config));
		if (active < 1)
			FAIL("no room for a cluster of %d blocks", cluster);
		CUDA(cudaLaunchKernelEx(&config, histogram, static_cast<const unsigned *>(in), totals, count, bins));
		const std::vector<unsigned> result = to_host(totals, bins);
		for (int i = 0; i < bins; i++)
			if (result[i] != expected[i])
				FAIL("clusters of %d: bin %d holds %u instead of %u", cluster, i, result[i], expected[i]);
	}
	CUDA(cudaFree(in));
	CUDA(cudaFree(totals));
	std::printf("ok cluster_histogram of %d values\n", count);
}
