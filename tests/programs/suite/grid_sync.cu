// Cooperative launch: the whole grid meets at grid.sync() between the steps of a computation in
// which every block needs what all others wrote.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <cooperative_groups.h>

#define FAIL(...) (std::printf("FAIL grid_sync " __VA_ARGS__), std::puts(""), std::exit(1))

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
