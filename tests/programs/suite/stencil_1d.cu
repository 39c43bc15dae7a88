// One-dimensional stencil of radius 4 on integers, with a halo in shared memory, several steps;
// outside the array lie zeros.
#define PROGRAM "stencil_1d"
#include "check.h"

#include <utility>

static const int THREADS = 128;
static const int RADIUS = 4;

__host__ __device__ static int weight(int offset)
{
	return offset == 0 ? 5 : RADIUS + 1 - (offset < 0 ? -offset : offset);
}

__global__ void step(const int *in, int *out, int count)
{
	__shared__ int tile[THREADS + 2 * RADIUS];
	const int i = blockIdx.x * THREADS + threadIdx.x;
	const int first = static_cast<int>(blockIdx.x) * THREADS - RADIUS;
	for (int k = threadIdx.x; k < THREADS + 2 * RADIUS; k += THREADS)
		tile[k] = first + k >= 0 && first + k < count ? in[first + k] : 0;
	__syncthreads();
	if (i >= count)
		return;
	int sum = 0;
	for (int offset = -RADIUS; offset <= RADIUS; offset++)
		sum += weight(offset) * tile[threadIdx.x + RADIUS + offset];
	out[i] = sum >> 3;
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 30001, 1, 1 << 28);
	const int steps = 5;
	std::vector<int> now(count), next(count);
	for (int i = 0; i < count; i++)
		now[i] = static_cast<int>(hash(i) >> 12) - (1 << 19);
	int *in = to_device(now), *out = device_array<int>(count);
	for (int k = 0; k < steps; k++) {
		step<<<(count + THREADS - 1) / THREADS, THREADS>>>(in, out, count);
		CUDA(cudaGetLastError());
		std::swap(in, out);
	}

	for (int k = 0; k < steps; k++) {
		for (int i = 0; i < count; i++) {
			int sum = 0;
			for (int offset = -RADIUS; offset <= RADIUS; offset++)
				if (i + offset >= 0 && i + offset < count)
					sum += weight(offset) * now[i + offset];
			next[i] = sum >> 3;
		}
		now.swap(next);
	}
	const std::vector<int> result = to_host(in, count);
	for (int i = 0; i < count; i++)
		if (result[i] != now[i])
			FAIL("element %d: %d instead of %d", i, result[i], now[i]);
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	std::printf("ok stencil_1d of %d elements, %d steps\n", count, steps);
}
