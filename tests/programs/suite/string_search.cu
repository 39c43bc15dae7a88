// Counts of several patterns in a text, byte loads from constant memory against global memory,
// first positions by atomicMin.
#define PROGRAM "string_search"
#include "check.h"

#include <climits>
#include <string>

static const char *const PATTERNS[] = {"a", "ab", "aba", "bacab", "abacabad", "zzz", "cccccccccc"};
static const int COUNT = sizeof PATTERNS / sizeof *PATTERNS;
static const int LONGEST = 16;

__constant__ char patterns[COUNT][LONGEST];
__constant__ int lengths[COUNT];

__global__ void search(const char *text, int length, int *counts, int *firsts)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	const int pattern = blockIdx.y;
	bool found = i + lengths[pattern] <= length;
	for (int k = 0; found && k < lengths[pattern]; k++)
		found = text[i + k] == patterns[pattern][k];
	if (found) {
		atomicAdd(&counts[pattern], 1);
		atomicMin(&firsts[pattern], i);
	}
}

int main(int argc, char **argv)
{
	const int length = size_option(argc, argv, 40000, 1, 1 << 28);
	std::string text(length, ' ');
	for (int i = 0; i < length; i++)
		text[i] = "aabbccad"[hash(i) % 8];
	const int planted = length / 2;
	if (planted + 10 <= length)
		text.replace(planted, 10, "cccccccccc");

	char padded[COUNT][LONGEST] = {};
	int sizes[COUNT];
	for (int k = 0; k < COUNT; k++) {
		sizes[k] = static_cast<int>(std::strlen(PATTERNS[k]));
		std::memcpy(padded[k], PATTERNS[k], sizes[k]);
	}
	CUDA(cudaMemcpyToSymbol(patterns, padded, sizeof padded));
	CUDA(cudaMemcpyToSymbol(lengths, sizes, sizeof sizes));
	char *device_text = to_device(std::vector<char>(text.begin(), text.end()));
	int *counts = to_device(std::vector<int>(COUNT, 0)), *firsts = to_device(std::vector<int>(COUNT, INT_MAX));
	search<<<dim3((length + 255) / 256, COUNT), 256>>>(device_text, length, counts, firsts);
	CUDA(cudaGetLastError());

	const std::vector<int> found = to_host(counts, COUNT), first = to_host(firsts, COUNT);
	int total = 0;
	for (int k = 0; k < COUNT; k++) {
		int expected = 0;
		const size_t first_expected = text.find(PATTERNS[k]);
		for (size_t at = first_expected; at != std::string::npos; at = text.find(PATTERNS[k], at + 1))
			expected++;
		if (found[k] != expected)
			FAIL("%s: %d times instead of %d", PATTERNS[k], found[k], expected);
		if (expected && first[k] != static_cast<int>(first_expected))
			FAIL("%s: first at %d instead of %zu", PATTERNS[k], first[k], first_expected);
		total += expected;
	}
	CUDA(cudaFree(device_text));
	CUDA(cudaFree(counts));
	CUDA(cudaFree(firsts));
	std::printf("ok string_search of %d patterns in %d characters: %d matches\n", COUNT, length, total);
}
