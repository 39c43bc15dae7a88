// Merge sort from the bottom up: every thread insertion-sorts a short run, then each pass merges
// pairs of runs; a thread finds its share of a merge by binary search along a diagonal
// ("merge path", Green, McColl and Bader, 2012).
#define PROGRAM "merge_sort"
#include "check.h"

#include <algorithm>

static const int RUN = 8;

__global__ void sort_runs(int64_t *values, int count)
{
	const int first = (blockIdx.x * blockDim.x + threadIdx.x) * RUN;
	const int length = min(RUN, count - first);
	int64_t run[RUN];
	for (int i = 0; i < length; i++) {
		const int64_t value = values[first + i];
		int place = i;
		for (; place > 0 && run[place - 1] > value; place--)
			run[place] = run[place - 1];
		run[place] = value;
	}
	for (int i = 0; i < length; i++)
		values[first + i] = run[i];
}

/// How many of the first `diagonal` elements of the merge come from `a`.
__device__ static int split(const int64_t *a, int a_length, const int64_t *b, int b_length, int diagonal)
{
	int low = max(0, diagonal - b_length), high = min(diagonal, a_length);
	while (low < high) {
		const int middle = (low + high) / 2;
		if (a[middle] <= b[diagonal - 1 - middle])
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

__global__ void merge_runs(const int64_t *in, int64_t *out, int count, int run)
{
	const int first = (blockIdx.x * blockDim.x + threadIdx.x) * RUN;
	if (first >= count)
		return;
	const int base = first / (2 * run) * 2 * run;
	const int64_t *a = in + base, *b = in + min(count, base + run);
	const int a_length = min(run, count - base), b_length = max(0, min(run, count - base - run));
	int i = split(a, a_length, b, b_length, first - base), k = first - base - i;
	for (int place = first; place < min(first + RUN, count); place++)
		out[place] = k >= b_length || (i < a_length && a[i] <= b[k]) ? a[i++] : b[k++];
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 30011, 1, 1 << 26);
	const int threads = 64, blocks = ((count + RUN - 1) / RUN + threads - 1) / threads;
	std::vector<int64_t> values(count);
	for (int i = 0; i < count; i++)
		values[i] = static_cast<int64_t>(static_cast<uint64_t>(hash(i)) << 32 | hash(~i));
	int64_t *in = to_device(values), *out = device_array<int64_t>(count);
	sort_runs<<<blocks, threads>>>(in, count);
	CUDA(cudaGetLastError());
	for (int run = RUN; run < count; run *= 2) {
		merge_runs<<<blocks, threads>>>(in, out, count, run);
		CUDA(cudaGetLastError());
		std::swap(in, out);
	}

	const std::vector<int64_t> sorted = to_host(in, count);
	std::sort(values.begin(), values.end());
	for (int i = 0; i < count; i++)
		if (sorted[i] != values[i])
			FAIL("element %d: %lld instead of %lld", i, static_cast<long long>(sorted[i]),
			     static_cast<long long>(values[i]));
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	std::printf("ok merge_sort of %d 64-bit numbers\n", count);
}
