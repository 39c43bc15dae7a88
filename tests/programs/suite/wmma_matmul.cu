// Matrix product on tensor cores through nvcuda::wmma: half operands, float sums, tiles of
// 16 x 16 x 16.  Elements are small whole numbers, so every sum is exact in any order.
#define PROGRAM "wmma_matmul"
#include "check.h"

#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

static const int TILE = 16;

/// One warp per tile of `c`; `b` is stored by columns.
__global__ void multiply(const __half *a, const __half *b, float *c, int size)
{
	const int tile_x = blockIdx.x, tile_y = blockIdx.y;
	wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, __half, wmma::row_major> a_tile;
	wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, __half, wmma::col_major> b_tile;
	wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float> sum;
	wmma::fill_fragment(sum, 0.0f);
	for (int k = 0; k < size; k += TILE) {
		wmma::load_matrix_sync(a_tile, a + tile_y * TILE * size + k, size);
		wmma::load_matrix_sync(b_tile, b + tile_x * TILE * size + k, size);
		wmma::mma_sync(sum, a_tile, b_tile, sum);
	}
	wmma::store_matrix_sync(c + tile_y * TILE * size + tile_x * TILE, sum, size, wmma::mem_row_major);
}

int main(int argc, char **argv)
{
	const int tiles = size_option(argc, argv, 4, 1, 256), size = tiles * TILE;
	std::vector<int> a(size * size), b(size * size);
	std::vector<uint16_t> a_half(size * size), b_half(size * size);
	const auto half_bits = [](int value) { return __half_as_ushort(__float2half(static_cast<float>(value))); };
	for (int i = 0; i < size * size; i++) {
		a[i] = static_cast<int>(hash(i) % 33) - 16;
		b[i] = static_cast<int>(hash(~i) % 33) - 16;
		a_half[i] = half_bits(a[i]);
		b_half[i] = half_bits(b[i]);
	}
	uint16_t *device_a = to_device(a_half), *device_b = to_device(b_half);
	float *device_c = device_array<float>(size * size);
	multiply<<<dim3(tiles, tiles), 32>>>(reinterpret_cast<const __half *>(device_a),
					     reinterpret_cast<const __half *>(device_b), device_c, size);
	CUDA(cudaGetLastError());
	const std::vector<float> c = to_host(device_c, size * size);
	for (int row = 0; row < size; row++)
		for (int column = 0; column < size; column++) {
			int sum = 0;
			for (int k = 0; k < size; k++)
				sum += a[row * size + k] * b[column * size + k];
			if (c[row * size + column] != static_cast<float>(sum))
				FAIL("element (%d, %d): %g instead of %d", row, column, c[row * size + column], sum);
		}
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(device_c));
	std::printf("ok wmma_matmul of %d x %d\n", size, size);
}
