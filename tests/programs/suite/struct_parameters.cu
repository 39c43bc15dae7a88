// Kernel parameters passed by value: structures of odd sizes and alignments, arrays indexed at
// run time, nested ones, and a list that nearly fills the classic 4 KiB of parameters.
#define PROGRAM "struct_parameters"
#include "check.h"

struct Odd {
	uint8_t bytes[7];
};

struct Mixed {
	char c;
	double d;
	short s;
	float4 f;
	uint8_t tail;
};

struct Nested {
	Odd odds[3];
	Mixed mixed;
	int64_t *out;
};

struct Large {
	uint32_t word[960];
};

__global__ void read_small(char a, Odd odd, short b, Mixed mixed, float c, Nested nested, bool d)
{
	if (threadIdx.x)
		return;
	int64_t *out = nested.out;
	*out++ = a;
	for (int i = 0; i < 7; i++)
		*out++ = odd.bytes[i];
	*out++ = b;
	for (const Mixed &m : {mixed, nested.mixed}) {
		*out++ = m.c;
		*out++ = static_cast<int64_t>(m.d);
		*out++ = m.s;
		*out++ = static_cast<int64_t>(m.f.x + m.f.y * 10 + m.f.z * 100 + m.f.w * 1000);
		*out++ = m.tail;
	}
	*out++ = static_cast<int64_t>(c);
	for (int k = 0; k < 3; k++)
		*out++ = nested.odds[k].bytes[(k * 3) % 7];
	*out++ = d;
}

__global__ void read_large(Large large, uint32_t *out, const int *order, Large *changed)
{
	const int i = threadIdx.x + blockIdx.x * blockDim.x;
	if (i < 960)
		out[i] = large.word[order[i]];
	if (i == 0) {
		large.word[5] = 55; // a parameter is the kernel's own copy
		*changed = large;
	}
}

int main()
{
	Nested nested = {{{{1, 2, 3, 4, 5, 6, 7}}, {{11, 12, 13, 14, 15, 16, 17}}, {{21, 22, 23, 24, 25, 26, 27}}},
			 {'n', -1e15, -3, {1, 2, 3, 4}, 200},
			 device_array<int64_t>(32)};
	read_small<<<1, 32>>>('x', Odd{{9, 8, 7, 6, 5, 4, 3}}, -12345, Mixed{'m', 4e15, 7, {9, 8, 7, 6}, 255}, 16777216.0f,
			      nested, true);
	CUDA(cudaGetLastError());
	const std::vector<int64_t> expected = {'x', 9, 8, 7, 6, 5, 4, 3, -12345, 'm', 4000000000000000, 7, 6789, 255,
					       'n', -1000000000000000, -3, 4321, 200, 16777216, 1, 14, 27, 1};
	const std::vector<int64_t> found = to_host(nested.out, expected.size());
	for (size_t i = 0; i < expected.size(); i++)
		if (found[i] != expected[i])
			FAIL("value %zu: %lld instead of %lld", i, static_cast<long long>(found[i]),
			     static_cast<long long>(expected[i]));

	Large large;
	std::vector<int> order(960);
	for (int i = 0; i < 960; i++) {
		large.word[i] = hash(i);
		order[i] = i * 7 % 960;
	}
	int *device_order = to_device(order);
	uint32_t *out = device_array<uint32_t>(960);
	Large *changed = device_array<Large>(1);
	read_large<<<8, 128>>>(large, out, device_order, changed);
	CUDA(cudaGetLastError());
	const std::vector<uint32_t> words = to_host(out, 960);
	for (int i = 0; i < 960; i++)
		if (words[i] != large.word[order[i]])
			FAIL("word %d of the large structure: %08x instead of %08x", i, words[i], large.word[order[i]]);
	large.word[5] = 55;
	const Large copy = to_host(changed, 1)[0];
	if (std::memcmp(&copy, &large, sizeof large))
		FAIL("the changed copy of the large structure is wrong");
	for (void *array : {(void *)nested.out, (void *)device_order, (void *)out, (void *)changed})
		CUDA(cudaFree(array));
	std::printf("ok struct_parameters of %zu bytes\n", sizeof(Large) + 3 * sizeof(void *));
}
