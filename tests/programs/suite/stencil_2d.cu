// Jacobi iterations of Laplace's equation on a square plate with fixed edges, in float, tiles
// with halo in shared memory.  Only + and *, so the CPU's result is the same bit for bit.
#define PROGRAM "stencil_2d"
#include "check.h"

#include <utility>

static const int TILE = 16;

__global__ void jacobi(const float *in, float *out, int size)
{
	__shared__ float tile[TILE + 2][TILE + 2];
	const int x0 = blockIdx.x * TILE, y0 = blockIdx.y * TILE;
	for (int k = threadIdx.y * TILE + threadIdx.x; k < (TILE + 2) * (TILE + 2); k += TILE * TILE) {
		const int x = min(x0 + k % (TILE + 2), size + 1), y = min(y0 + k / (TILE + 2), size + 1);
		tile[k / (TILE + 2)][k % (TILE + 2)] = in[y * (size + 2) + x];
	}
	__syncthreads();
	const int x = threadIdx.x + 1, y = threadIdx.y + 1;
	if (x0 + x <= size && y0 + y <= size)
		out[(y0 + y) * (size + 2) + x0 + x] =
			0.25f * ((tile[y][x - 1] + tile[y][x + 1]) + (tile[y - 1][x] + tile[y + 1][x]));
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 150, 1, 8192);
	const int pitch = size + 2, steps = 20;
	std::vector<float> now(pitch * pitch), next;
	for (int i = 0; i < pitch; i++) {
		now[i] = 100.0f;                                // north
		now[(pitch - 1) * pitch + i] = 0.1f * i;        // south
		now[i * pitch] = 20.0f + i;                     // west
	}
	next = now;
	float *in = to_device(now), *out = to_device(now);
	const dim3 blocks((size + TILE - 1) / TILE, (size + TILE - 1) / TILE), threads(TILE, TILE);
	for (int k = 0; k < steps; k++) {
		jacobi<<<blocks, threads>>>(in, out, size);
		CUDA(cudaGetLastError());
		std::swap(in, out);
	}

	for (int k = 0; k < steps; k++) {
		for (int y = 1; y <= size; y++)
			for (int x = 1; x <= size; x++) {
				const float *cell = &now[y * pitch + x];
				next[y * pitch + x] = 0.25f * ((cell[-1] + cell[1]) + (cell[-pitch] + cell[pitch]));
			}
		now.swap(next);
	}
	const std::vector<float> result = to_host(in, pitch * pitch);
	for (int i = 0; i < pitch * pitch; i++)
		if (result[i] != now[i])
			FAIL("cell (%d, %d): %.9g instead of %.9g", i % pitch, i / pitch, result[i], now[i]);
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	std::printf("ok stencil_2d of %d x %d cells, %d steps, centre %g\n", size, size, steps,
		    result[pitch / 2 * pitch + pitch / 2]);
}
