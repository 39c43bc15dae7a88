// What the programs with a device at each of two servers share.
#pragma once

#include "../check.h"

#include <cstring>
#include <vector>

__global__ static void fill_with(int *to, int count, int seed)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
		to[i] = seed + 3 * i;
}

__global__ static void add_to(int *to, const int *from, int count, int more)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
		to[i] = from[i] + more;
}

// A number that grows until it is large enough: keeps a stream busy for a while.
__global__ static void take_time(int *to, int rounds)
{
	int value = *to;

	for (int i = 0; i < rounds; i++)
		value = value * 1664525 + 1013904223;
	*to = value;
}

inline void expect_filled(const std::vector<int> &have, int seed, int more = 0)
{
	for (size_t i = 0; i < have.size(); i++)
		if (have[i] != seed + 3 * (int)i + more)
			FAIL("element %zu is %d instead of %d", i, have[i], seed + 3 * (int)i + more);
}

inline std::vector<int> read_back(const int *device, int count)
{
	std::vector<int> have(count);

	CUDA(cudaMemcpy(have.data(), device, count * sizeof(int), cudaMemcpyDefault));
	return have;
}

template <typename T = int> T *allocate_on(int device, size_t count)
{
	void *memory;

	CUDA(cudaSetDevice(device));
	CUDA(cudaMalloc(&memory, count * sizeof(T)));
	return (T *)memory;
}
