// Exclusive prefix sum by the up-sweep and down-sweep of Blelloch ("Prefix Sums and Their
// Applications", 1990): within blocks in shared memory, recursively over the blocks' sums.
#define PROGRAM "scan_blelloch"
#include "check.h"

static const int THREADS = 128;
static const int CHUNK = 2 * THREADS;

__global__ void scan_chunks(const uint32_t *in, uint32_t *out, uint32_t *chunk_sums, int count)
{
	__shared__ uint32_t tree[CHUNK];
	const int base = blockIdx.x * CHUNK;
	const int left = 2 * threadIdx.x;
	for (int k = 0; k < 2; k++)
		tree[left + k] = base + left + k < count ? in[base + left + k] : 0;

	int stride = 1;
	for (int nodes = CHUNK / 2; nodes > 0; nodes /= 2, stride *= 2) {
		__syncthreads();
		if (threadIdx.x < nodes)
			tree[stride * (left + 2) - 1] += tree[stride * (left + 1) - 1];
	}
	if (threadIdx.x == 0) {
		chunk_sums[blockIdx.x] = tree[CHUNK - 1];
		tree[CHUNK - 1] = 0;
	}
	for (int nodes = 1; nodes < CHUNK; nodes *= 2) {
		stride /= 2;
		__syncthreads();
		if (threadIdx.x < nodes) {
			const uint32_t sum = tree[stride * (left + 1) - 1];
			tree[stride * (left + 1) - 1] = tree[stride * (left + 2) - 1];
			tree[stride * (left + 2) - 1] += sum;
		}
	}
	__syncthreads();
	for (int k = 0; k < 2; k++)
		if (base + left + k < count)
			out[base + left + k] = tree[left + k];
}

__global__ void add_offsets(uint32_t *out, const uint32_t *offsets, int count)
{
	const int i = blockIdx.x * CHUNK + threadIdx.x;
	for (int k = i; k < i + CHUNK && k < count; k += blockDim.x)
		out[k] += offsets[blockIdx.x];
}

static void scan(const uint32_t *in, uint32_t *out, int count)
{
	const int chunks = (count + CHUNK - 1) / CHUNK;
	uint32_t *sums = device_array<uint32_t>(chunks);
	scan_chunks<<<chunks, THREADS>>>(in, out, sums, count);
	CUDA(cudaGetLastError());
	if (chunks > 1) {
		uint32_t *offsets = device_array<uint32_t>(chunks);
		scan(sums, offsets, chunks);
		add_offsets<<<chunks, CHUNK>>>(out, offsets, count);
		CUDA(cudaGetLastError());
		CUDA(cudaFree(offsets));
	}
	CUDA(cudaFree(sums));
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 100001, 1, 1 << 28);
	std::vector<uint32_t> values(count);
	for (int i = 0; i < count; i++)
		values[i] = hash(i);
	uint32_t *in = to_device(values);
	uint32_t *out = device_array<uint32_t>(count);
	scan(in, out, count);

	const std::vector<uint32_t> sums = to_host(out, count);
	uint32_t expected = 0;
	for (int i = 0; i < count; i++) {
		if (sums[i] != expected)
			FAIL("sum before element %d: %u instead of %u", i, sums[i], expected);
		expected += values[i];
	}
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	std::printf("ok scan_blelloch of %d numbers: total %u\n", count, expected);
}
