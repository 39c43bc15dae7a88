// CUB's device-wide reductions: sum, minimum, a reduction with
// an operator of ours, and sums of segments.
#define PROGRAM "cub_reduce"
#include "check.h"

#include <algorithm>

#include <cub/cub.cuh>

struct Xor {
	__host__ __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a ^ b; }
};

/// Calls `reduce(storage, size)` twice, as CUB wants it: for the size, then to work.
template <typename Reduce> static void with_storage(Reduce reduce)
{
	void *storage = nullptr;
	size_t size = 0;
	CUDA(reduce(storage, size));
	CUDA(cudaMalloc(&storage, size));
	CUDA(reduce(storage, size));
	CUDA(cudaGetLastError());
	CUDA(cudaFree(storage));
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 30000, 1, 1 << 28);
	const int segments = (count + 999) / 1000;
	std::vector<uint32_t> values(count);
	std::vector<int> offsets;
	for (int i = 0; i < count; i++)
		values[i] = hash(i) >> 4;
	for (int i = 0; i <= segments; i++)
		offsets.push_back(std::min(count, i * 1000));
	uint32_t *in = to_device(values), *out = device_array<uint32_t>(segments);
	int *device_offsets = to_device(offsets);

	uint32_t sum = 0, mix = 7;
	for (uint32_t value : values) {
		sum += value;
		mix ^= value;
	}
	with_storage([&](void *storage, size_t &size) { return cub::DeviceReduce::Sum(storage, size, in, out, count); });
	if (to_host(out, 1)[0] != sum)
		FAIL("sum: %u instead of %u", to_host(out, 1)[0], sum);
	with_storage([&](void *storage, size_t &size) { return cub::DeviceReduce::Min(storage, size, in, out, count); });
	if (to_host(out, 1)[0] != *std::min_element(values.begin(), values.end()))
		FAIL("minimum: %u", to_host(out, 1)[0]);
	with_storage([&](void *storage, size_t &size) {
		return cub::DeviceReduce::Reduce(storage, size, in, out, count, Xor(), 7u);
	});
	if (to_host(out, 1)[0] != mix)
		FAIL("exclusive or: %u instead of %u", to_host(out, 1)[0], mix);
	with_storage([&](void *storage, size_t &size) {
		return cub::DeviceSegmentedReduce::Sum(storage, size, in, out, segments, device_offsets, device_offsets + 1);
	});
	const std::vector<uint32_t> sums = to_host(out, segments);
	for (int i = 0; i < segments; i++) {
		uint32_t expected = 0;
		for (int k = offsets[i]; k < offsets[i + 1]; k++)
			expected += values[k];
		if (sums[i] != expected)
			FAIL("segment %d: %u instead of %u", i, sums[i], expected);
	}
	for (void *array : {(void *)in, (void *)out, (void *)device_offsets})
		CUDA(cudaFree(array));
	std::printf("ok cub_reduce of %d numbers: sum %u\n", count, sum);
}
