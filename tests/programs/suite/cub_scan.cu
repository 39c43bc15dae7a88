// CUB's device-wide scans and selections: exclusive sums (with decoupled look-back), inclusive
// maxima, selection by flags, run-length encoding.
#define PROGRAM "cub_scan"
#include "check.h"

#include <algorithm>

#include <cub/cub.cuh>

struct Larger {
	__host__ __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

template <typename Scan> static void with_storage(Scan scan)
{
	void *storage = nullptr;
	size_t size = 0;
	CUDA(scan(storage, size));
	CUDA(cudaMalloc(&storage, size));
	CUDA(scan(storage, size));
	CUDA(cudaGetLastError());
	CUDA(cudaFree(storage));
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 30000, 1, 1 << 28);
	std::vector<uint32_t> values(count);
	std::vector<char> flags(count);
	for (int i = 0; i < count; i++) {
		values[i] = hash(i / 3) % 100;
		flags[i] = hash(~i) % 5 == 0;
	}
	uint32_t *in = to_device(values), *out = device_array<uint32_t>(count);
	char *device_flags = to_device(flags);
	int *lengths = device_array<int>(count), *selected = device_array<int>(1);

	with_storage([&](void *storage, size_t &size) { return cub::DeviceScan::ExclusiveSum(storage, size, in, out, count); });
	std::vector<uint32_t> found = to_host(out, count);
	uint32_t sum = 0;
	for (int i = 0; i < count; sum += values[i++])
		if (found[i] != sum)
			FAIL("sum before %d: %u instead of %u", i, found[i], sum);
	with_storage([&](void *storage, size_t &size) {
		return cub::DeviceScan::InclusiveScan(storage, size, in, out, Larger(), count);
	});
	found = to_host(out, count);
	uint32_t largest = 0;
	for (int i = 0; i < count; i++) {
		largest = std::max(largest, values[i]);
		if (found[i] != largest)
			FAIL("maximum up to %d: %u instead of %u", i, found[i], largest);
	}
	with_storage([&](void *storage, size_t &size) {
		return cub::DeviceSelect::Flagged(storage, size, in, device_flags, out, selected, count);
	});
	std::vector<uint32_t> expected;
	for (int i = 0; i < count; i++)
		if (flags[i])
			expected.push_back(values[i]);
	if (to_host(selected, 1)[0] != static_cast<int>(expected.size()) || to_host(out, expected.size()) != expected)
		FAIL("selection: %d elements instead of %zu", to_host(selected, 1)[0], expected.size());
	with_storage([&](void *storage, size_t &size) {
		return cub::DeviceRunLengthEncode::Encode(storage, size, in, out, lengths, selected, count);
	});
	std::vector<int> expected_lengths;
	expected.clear();
	for (int i = 0; i < count; i++) {
		if (i == 0 || values[i] != values[i - 1]) {
			expected.push_back(values[i]);
			expected_lengths.push_back(0);
		}
		expected_lengths.back()++;
	}
	if (to_host(selected, 1)[0] != static_cast<int>(expected.size()) || to_host(out, expected.size()) != expected ||
	    to_host(lengths, expected.size()) != expected_lengths)
		FAIL("run lengths: %d runs instead of %zu", to_host(selected, 1)[0], expected.size());
	for (void *array : {(void *)in, (void *)out, (void *)device_flags, (void *)lengths, (void *)selected})
		CUDA(cudaFree(array));
	std::printf("ok cub_scan of %d numbers\n", count);
}
