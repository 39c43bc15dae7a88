// Matrix product in float with tiles in shared memory.  The terms of an element are added in the
// order of k, as on the CPU, so the result is the same bit for bit.
#define PROGRAM "matmul_tiled"
#include "check.h"

static const int TILE = 16;

__global__ void multiply(const float *a, const float *b, float *c, int rows, int inner, int columns)
{
	__shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
	const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
	float sum = 0.0f;
	for (int k0 = 0; k0 < inner; k0 += TILE) {
		const int ka = k0 + threadIdx.x, kb = k0 + threadIdx.y;
		a_tile[threadIdx.y][threadIdx.x] = row < rows && ka < inner ? a[row * inner + ka] : 0.0f;
		b_tile[threadIdx.y][threadIdx.x] = kb < inner && column < columns ? b[kb * columns + column] : 0.0f;
		__syncthreads();
		const int last = min(TILE, inner - k0);
		for (int k = 0; k < last; k++)
			sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
		__syncthreads();
	}
	if (row < rows && column < columns)
		c[row * columns + column] = sum;
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 120, 5, 8192);
	const int rows = size, inner = size + 7, columns = size - 4;
	std::vector<float> a(rows * inner), b(inner * columns);
	for (size_t i = 0; i < a.size(); i++)
		a[i] = static_cast<int>(hash(i)) * 0x1p-31f;
	for (size_t i = 0; i < b.size(); i++)
		b[i] = static_cast<int>(hash(~i)) * 0x1p-31f;
	float *device_a = to_device(a), *device_b = to_device(b), *device_c = device_array<float>(rows * columns);
	multiply<<<dim3((columns + TILE - 1) / TILE, (rows + TILE - 1) / TILE), dim3(TILE, TILE)>>>(
		device_a, device_b, device_c, rows, inner, columns);
	CUDA(cudaGetLastError());

	const std::vector<float> c = to_host(device_c, rows * columns);
	for (int row = 0; row < rows; row++)
		for (int column = 0; column < columns; column++) {
			float sum = 0.0f;
			for (int k = 0; k < inner; k++)
				sum += a[row * inner + k] * b[k * columns + column];
			if (c[row * columns + column] != sum)
				FAIL("element (%d, %d): %.9g instead of %.9g", row, column, c[row * columns + column],
				     sum);
		}
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(device_c));
	std::printf("ok matmul_tiled of %d x %d by %d x %d\n", rows, inner, inner, columns);
}
