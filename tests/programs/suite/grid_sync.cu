// Cooperative launch: the whole grid meets at grid.sync() between the steps of a computation in
// which every block needs what all others wrote.
#define PROGRAM "grid_sync"
#include "check.h"

#include <utility>

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

/// Each step: element i becomes a mix of elements far away on both sides.
__host__ __device__ static unsigned mix(const unsigned *in, int i, int count, int step)
{
	return in[i] * 3u + in[(i + count / 2 + step) % count] + (in[(i + 7 * step) % count] >> 3);
}

__global__ void evolve(unsigned *now, unsigned *next, int count, int steps)
{
	cg::grid_group grid = cg::this_grid();
	for (int step = 0; step < steps; step++) {
		for (int i = grid.thread_rank(); i < count; i += grid.size())
			next[i] = mix(now, i, count, step);
		grid.sync();
		unsigned *const previous = now;
		now = next;
		next = previous;
	}
}

int main(int argc, char **argv)
{
	int count = size_option(argc, argv, 5000, 16, 1 << 26);
	int steps = 7, cooperative = 0;
	CUDA(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, 0));
	if (!cooperative)
		FAIL("the device can't launch cooperatively");
	int blocks = 0, processors = 0;
	const int threads = 96;
	CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, evolve, threads, 0));
	CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
	blocks *= processors;
	blocks = blocks < 12 ? blocks : 12;

	std::vector<unsigned> now(count), next(count);
	for (int i = 0; i < count; i++)
		now[i] = hash(i);
	unsigned *a = to_device(now), *b = device_array<unsigned>(count);
	void *arguments[] = {&a, &b, &count, &steps};
	CUDA(cudaLaunchCooperativeKernel(reinterpret_cast<const void *>(evolve), dim3(blocks), dim3(threads), arguments, 0, nullptr));
	for (int step = 0; step < steps; step++) {
		for (int i = 0; i < count; i++)
			next[i] = mix(now.data(), i, count, step);
		now.swap(next);
	}
	const std::vector<unsigned> result = to_host(steps % 2 ? b : a, count);
	for (int i = 0; i < count; i++)
		if (result[i] != now[i])
			FAIL("element %d: %u instead of %u", i, result[i], now[i]);
	CUDA(cudaFree(a));
	CUDA(cudaFree(b));
	std::printf("ok grid_sync of %d blocks, %d steps\n", blocks, steps);
}
