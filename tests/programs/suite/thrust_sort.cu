// Thrust: device vectors, sort by key, unique, and binary searches.
#define PROGRAM "thrust_sort"
#include "check.h"

#include <algorithm>
#include <exception>
#include <map>

#include <thrust/binary_search.h>
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

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
