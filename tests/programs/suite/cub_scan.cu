// CUB's device-wide scans and selections: exclusive sums (with decoupled look-back), inclusive
// maxima, selection by flags, run-length encoding.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cub/cub.cuh>

#define FAIL(...) (std::printf("FAIL cub_scan " __VA_ARGS__), std::puts(""), std::exit(1))

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
