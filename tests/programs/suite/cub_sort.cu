// CUB's device-wide sorts: radix sort of keys and of pairs (also descending, and of floats), and
// merge sort with a comparison of ours.
#define PROGRAM "cub_sort"
#include "check.h"

#include <algorithm>
#include <numeric>

#include <cub/cub.cuh>

/// By the number of bits, then by value.
struct FewerBits {
	__host__ __device__ static int bits(uint32_t x)
	{
		int count = 0;
		for (; x; x &= x - 1)
			count++;
		return count;
	}

	__host__ __device__ bool operator()(uint32_t a, uint32_t b) const
	{
		return bits(a) != bits(b) ? bits(a) < bits(b) : a < b;
	}
};

template <typename Sort> static void with_storage(Sort sort)
{
	void *storage = nullptr;
	size_t size = 0;
	CUDA(sort(storage, size));
	CUDA(cudaMalloc(&storage, size));
	CUDA(sort(storage, size));
	CUDA(cudaGetLastError());
	CUDA(cudaFree(storage));
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 20000, 1, 1 << 27);
	std::vector<uint32_t> keys(count);
	std::vector<float> floats(count);
	std::vector<int> order(count);
	std::iota(order.begin(), order.end(), 0);
	for (int i = 0; i < count; i++) {
		keys[i] = hash(i) % 5000 << 10;
		floats[i] = (static_cast<int>(hash(i)) >> 8) * 0.25f;
	}
	uint32_t *in = to_device(keys), *out = device_array<uint32_t>(count);
	int *indices = to_device(order), *sorted_indices = device_array<int>(count);
	float *floats_in = to_device(floats), *floats_out = device_array<float>(count);

	with_storage([&](void *storage, size_t &size) {
		return cub::DeviceRadixSort::SortPairs(storage, size, in, out, indices, sorted_indices, count);
	});
	std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] < keys[b]; });
	const std::vector<uint32_t> sorted = to_host(out, count);
	for (int i = 0; i < count; i++)
		if (sorted[i] != keys[order[i]])
			FAIL("key %d: %u instead of %u", i, sorted[i], keys[order[i]]);
	if (to_host(sorted_indices, count) != order)
		FAIL("the sort of pairs is not stable");
	with_storage([&](void *storage, size_t &size) {
		return cub::DeviceRadixSort::SortKeysDescending(storage, size, floats_in, floats_out, count);
	});
	std::sort(floats.begin(), floats.end(), [](float a, float b) { return a > b; });
	if (to_host(floats_out, count) != floats)
		FAIL("the descending sort of floats is wrong");
	with_storage([&](void *storage, size_t &size) {
		return cub::DeviceMergeSort::SortKeys(storage, size, in, count, FewerBits());
	});
	std::sort(keys.begin(), keys.end(), FewerBits());
	if (to_host(in, count) != keys)
		FAIL("the merge sort is wrong");
	for (void *array : {(void *)in, (void *)out, (void *)indices, (void *)sorted_indices, (void *)floats_in, (void *)floats_out})
		CUDA(cudaFree(array));
	std::printf("ok cub_sort of %d keys\n", count);
}
