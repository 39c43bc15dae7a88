// Run-length coding on the GPU (mark the starts of runs, scan the marks, scatter) and decoding
// (binary search for each byte's run); the code must be the CPU's, the decoded bytes the input.
#define PROGRAM "run_length"
#include "check.h"

static const int THREADS = 256;

/// Marks starts of runs; per block, the inclusive scan of its marks and their number.
__global__ void mark(const uint8_t *bytes, int count, int *ranks, int *block_runs)
{
	__shared__ int scan[2][THREADS];
	const int i = blockIdx.x * THREADS + threadIdx.x;
	int now = 0;
	scan[0][threadIdx.x] = i < count && (i == 0 || bytes[i] != bytes[i - 1]);
	for (int offset = 1; offset < THREADS; offset *= 2, now ^= 1) {
		__syncthreads();
		scan[now ^ 1][threadIdx.x] =
			scan[now][threadIdx.x] + (threadIdx.x >= offset ? scan[now][threadIdx.x - offset] : 0);
	}
	if (i < count)
		ranks[i] = scan[now][threadIdx.x];
	if (threadIdx.x == THREADS - 1)
		block_runs[blockIdx.x] = scan[now][threadIdx.x];
}

/// One thread; the number of blocks is small.
__global__ void scan_blocks(int *block_runs, int blocks, int *runs)
{
	int before = 0;
	for (int i = 0; i < blocks; i++) {
		const int here = block_runs[i];
		block_runs[i] = before;
		before += here;
	}
	*runs = before;
}

__global__ void emit(const uint8_t *bytes, int count, const int *ranks, const int *before, uint8_t *values, int *starts)
{
	const int i = blockIdx.x * THREADS + threadIdx.x;
	if (i < count && (i == 0 || bytes[i] != bytes[i - 1])) {
		const int run = before[blockIdx.x] + ranks[i] - 1;
		values[run] = bytes[i];
		starts[run] = i;
	}
}

__global__ void decode(const uint8_t *values, const int *starts, int runs, uint8_t *bytes, int count)
{
	const int i = blockIdx.x * THREADS + threadIdx.x;
	if (i >= count)
		return;
	int low = 0, high = runs - 1; // the last run that starts at or before i
	while (low < high) {
		const int middle = (low + high + 1) / 2;
		if (starts[middle] <= i)
			low = middle;
		else
			high = middle - 1;
	}
	bytes[i] = values[low];
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 50000, 1, 1 << 26);
	const int blocks = (count + THREADS - 1) / THREADS;
	std::vector<uint8_t> bytes, expected_values;
	std::vector<int> expected_starts;
	for (uint32_t run = 0; static_cast<int>(bytes.size()) < count; run++) {
		const uint32_t length = run % 50 == 49 ? 1000 : 1 + hash(run) % 9;
		for (uint32_t k = 0; k < length && static_cast<int>(bytes.size()) < count; k++)
			bytes.push_back(hash(~run) % 3);
	}
	for (int i = 0; i < count; i++)
		if (i == 0 || bytes[i] != bytes[i - 1]) {
			expected_values.push_back(bytes[i]);
			expected_starts.push_back(i);
		}
	const int expected_runs = static_cast<int>(expected_values.size());

	uint8_t *device_bytes = to_device(bytes), *values = device_array<uint8_t>(count);
	int *ranks = device_array<int>(count), *starts = device_array<int>(count);
	int *block_runs = device_array<int>(blocks), *device_runs = device_array<int>(1);
	mark<<<blocks, THREADS>>>(device_bytes, count, ranks, block_runs);
	scan_blocks<<<1, 1>>>(block_runs, blocks, device_runs);
	emit<<<blocks, THREADS>>>(device_bytes, count, ranks, block_runs, values, starts);
	CUDA(cudaGetLastError());
	const int runs = to_host(device_runs, 1)[0];
	if (runs != expected_runs)
		FAIL("%d runs instead of %d", runs, expected_runs);
	if (to_host(values, runs) != expected_values || to_host(starts, runs) != expected_starts)
		FAIL("the runs differ");

	CUDA(cudaMemset(device_bytes, 0xff, count));
	decode<<<blocks, THREADS>>>(values, starts, runs, device_bytes, count);
	CUDA(cudaGetLastError());
	if (to_host(device_bytes, count) != bytes)
		FAIL("the decoded bytes differ from the input");
	for (void *array : {(void *)device_bytes, (void *)values, (void *)ranks, (void *)starts, (void *)block_runs,
			    (void *)device_runs})
		CUDA(cudaFree(array));
	std::printf("ok run_length of %d bytes: %d runs\n", count, runs);
}
