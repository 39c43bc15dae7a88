// Monte Carlo estimate of pi with the counter-based generator Philox4x32-10 (Salmon et al.,
// "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).  The test is on whole numbers, so the
// count of hits is exact; the generator is checked against the paper's known answers.
#define PROGRAM "monte_carlo_pi"
#include "check.h"

#include <cmath>

struct Block {
	uint32_t word[4];
};

__host__ __device__ static Block philox(Block counter, uint32_t key0, uint32_t key1)
{
	for (int round = 0; round < 10; round++) {
		const uint64_t a = static_cast<uint64_t>(0xd2511f53u) * counter.word[0];
		const uint64_t b = static_cast<uint64_t>(0xcd9e8d57u) * counter.word[2];
		counter = {{static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(b),
			    static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(a)}};
		key0 += 0x9e3779b9u;
		key1 += 0xbb67ae85u;
	}
	return counter;
}

/// How many of the two points that counter `index` gives lie in the quarter circle.
__host__ __device__ static int hits_of(uint32_t index)
{
	const Block random = philox({{index, 0, 0, 0}}, 0x5eed, 0xfa4b);
	int hits = 0;
	for (int k = 0; k < 4; k += 2) {
		const uint64_t x = random.word[k] >> 1, y = random.word[k + 1] >> 1;
		hits += x * x + y * y < 1ull << 62;
	}
	return hits;
}

__global__ void sample(uint32_t count, unsigned long long *hits)
{
	unsigned own = 0;
	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
		own += hits_of(i);
	for (int offset = 16; offset > 0; offset /= 2)
		own += __shfl_xor_sync(0xffffffffu, own, offset);
	if (threadIdx.x % 32 == 0)
		atomicAdd(hits, static_cast<unsigned long long>(own));
}

__global__ void generate(Block counter, uint32_t key0, uint32_t key1, Block *out)
{
	*out = philox(counter, key0, key1);
}

int main(int argc, char **argv)
{
	const uint32_t count = size_option(argc, argv, 200000, 1000, 1 << 30);

	Block *random = device_array<Block>(1);
	const struct {
		Block counter;
		uint32_t key0, key1;
		Block random;
	} known[] = {
		{{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
		{{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
		 {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
	};
	for (const auto &answer : known) {
		generate<<<1, 1>>>(answer.counter, answer.key0, answer.key1, random);
		CUDA(cudaGetLastError());
		const Block made = to_host(random, 1)[0];
		if (std::memcmp(&made, &answer.random, sizeof made))
			FAIL("Philox gives %08x ... instead of %08x ...", made.word[0], answer.random.word[0]);
	}

	auto *device_hits = device_array<unsigned long long>(1);
	CUDA(cudaMemset(device_hits, 0, sizeof *device_hits));
	sample<<<20, 128>>>(count, device_hits);
	CUDA(cudaGetLastError());
	const unsigned long long hits = to_host(device_hits, 1)[0];
	unsigned long long expected = 0;
	for (uint32_t i = 0; i < count; i++)
		expected += hits_of(i);
	if (hits != expected)
		FAIL("%llu hits instead of %llu", hits, expected);
	// The standard deviation of the estimate is 1.64 / sqrt(points); five of them are allowed.
	const double pi = 4.0 * hits / (2.0 * count);
	if (std::fabs(pi - std::acos(-1.0)) > 5 * 1.64 / std::sqrt(2.0 * count))
		FAIL("pi = %g", pi);
	CUDA(cudaFree(random));
	CUDA(cudaFree(device_hits));
	std::printf("ok monte_carlo_pi of %u points: %g\n", 2 * count, pi);
}
