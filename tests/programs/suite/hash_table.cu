// Open-addressing hash table: threads claim slots by 64-bit atomicCAS and add up values; lookups
// find what is there and nothing else.
#define PROGRAM "hash_table"
#include "check.h"

#include <map>

static const unsigned long long EMPTY = ~0ull;

__device__ static int home(unsigned long long key, int slots)
{
	return static_cast<int>(hash(static_cast<uint32_t>(key) ^ hash(static_cast<uint32_t>(key >> 32))) % slots);
}

__global__ void insert(unsigned long long *keys, int *values, int slots, const unsigned long long *items, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	int slot = home(items[i], slots);
	for (;;) {
		const unsigned long long there = atomicCAS(&keys[slot], EMPTY, items[i]);
		if (there == EMPTY || there == items[i])
			break;
		slot = slot + 1 < slots ? slot + 1 : 0;
	}
	atomicAdd(&values[slot], i + 1);
}

__global__ void look_up(const unsigned long long *keys, const int *values, int slots, const unsigned long long *items,
			int count, int *found)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	found[i] = -1;
	for (int slot = home(items[i], slots); keys[slot] != EMPTY; slot = slot + 1 < slots ? slot + 1 : 0)
		if (keys[slot] == items[i]) {
			found[i] = values[slot];
			return;
		}
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 12000, 1, 1 << 16);
	const int slots = count + count / 4 + 1;
	std::vector<unsigned long long> items(count), asked(2 * count);
	std::map<unsigned long long, int> expected;
	for (int i = 0; i < count; i++) {
		const uint32_t number = hash(i) % (count / 2 + 1); // keys repeat
		items[i] = static_cast<unsigned long long>(hash(number)) << 32 | number;
		expected[items[i]] += i + 1;
		asked[2 * i] = items[i];
		asked[2 * i + 1] = items[i] + (1ull << 31); // numbers are below 2^31: never inserted
	}
	unsigned long long *keys = to_device(std::vector<unsigned long long>(slots, EMPTY));
	int *values = to_device(std::vector<int>(slots, 0)), *found = device_array<int>(2 * count);
	unsigned long long *device_items = to_device(items), *device_asked = to_device(asked);
	insert<<<(count + 127) / 128, 128>>>(keys, values, slots, device_items, count);
	CUDA(cudaGetLastError());
	look_up<<<(2 * count + 127) / 128, 128>>>(keys, values, slots, device_asked, 2 * count, found);
	CUDA(cudaGetLastError());

	const std::vector<int> answers = to_host(found, 2 * count);
	for (int i = 0; i < 2 * count; i++) {
		const int value = i % 2 ? -1 : expected[asked[i]];
		if (answers[i] != value)
			FAIL("key %016llx: %d instead of %d", asked[i], answers[i], value);
	}
	size_t taken = 0;
	for (unsigned long long key : to_host(keys, slots))
		taken += key != EMPTY;
	if (taken != expected.size())
		FAIL("%zu slots taken by %zu keys", taken, expected.size());
	for (void *array : {(void *)keys, (void *)values, (void *)found, (void *)device_items, (void *)device_asked})
		CUDA(cudaFree(array));
	std::printf("ok hash_table of %d insertions, %zu keys\n", count, expected.size());
}
