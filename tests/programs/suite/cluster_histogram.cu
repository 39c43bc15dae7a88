// A histogram that is spread over the shared memory of a cluster of blocks, which all of them
// update; its size is given at the launch.
#define PROGRAM "cluster_histogram"
#include "check.h"

#include <cooperative_groups.h>

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
