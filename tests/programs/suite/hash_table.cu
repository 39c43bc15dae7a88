// Open-addressing hash table: threads claim slots by 64-bit atomicCAS and add up values; lookups
// find what is there and nothing else.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#define FAIL(...) (std::printf("FAIL hash_table " __VA_ARGS__), std::puts(""), std::exit(1))

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
