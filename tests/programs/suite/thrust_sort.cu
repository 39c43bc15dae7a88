// Thrust: device vectors, sort by key, unique, and binary searches.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <vector>

#include <thrust/binary_search.h>
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

#define FAIL(...) (std::printf("FAIL thrust_sort " __VA_ARGS__), std::puts(""), std::exit(1))

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

/// A bijective mix of 32 bits (lowbias32, C. Wellons, "Prospecting for Hash Functions", 2018).
__host__ __device__ static inline uint32_t hash(uint32_t x)
{
	x = (x ^ (x >> 16)) * 0x7feb352du;
	x = (x ^ (x >> 15)) * 0x846ca68bu;
	return x ^ (x >> 16);
}

int main(int argc, char **argv)
try {
	const int count = size_option(argc, argv, 10000, 1, 1 << 26);
	thrust::host_vector<uint32_t> keys(count);
	for (int i = 0; i < count; i++)
		keys[i] = hash(i) % 3000;
	thrust::device_vector<uint32_t> device_keys = keys;
	thrust::device_vector<int> places(count);
	thrust::sequence(places.begin(), places.end());
	thrust::stable_sort_by_key(device_keys.begin(), device_keys.end(), places.begin());
	const thrust::host_vector<int> sorted_places = places;
	std::vector<int> expected(count);
	for (int i = 0; i < count; i++)
		expected[i] = i;
	std::stable_sort(expected.begin(), expected.end(), [&](int a, int b) { return keys[a] < keys[b]; });
	for (int i = 0; i < count; i++)
		if (sorted_places[i] != expected[i])
			FAIL("place %d: %d instead of %d", i, sorted_places[i], expected[i]);

	device_keys.erase(thrust::unique(device_keys.begin(), device_keys.end()), device_keys.end());
	std::map<uint32_t, int> distinct;
	for (uint32_t key : keys)
		distinct[key]++;
	if (device_keys.size() != distinct.size())
		FAIL("%zu distinct keys instead of %zu", device_keys.size(), distinct.size());
	thrust::device_vector<uint32_t> asked(3000);
	thrust::sequence(asked.begin(), asked.end());
	thrust::device_vector<bool> there(asked.size());
	thrust::binary_search(device_keys.begin(), device_keys.end(), asked.begin(), asked.end(), there.begin());
	const thrust::host_vector<bool> found = there;
	for (uint32_t key = 0; key < 3000; key++)
		if (found[key] != (distinct.count(key) == 1))
			FAIL("key %u should %sbe there", key, distinct.count(key) ? "" : "not ");
	std::printf("ok thrust_sort of %d keys, %zu distinct\n", count, distinct.size());
} catch (const std::exception &error) {
	FAIL("%s", error.what());
}
