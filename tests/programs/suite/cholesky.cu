// Cholesky decomposition in double, left-looking: a launch per column, a thread per row; every
// block works out the column's diagonal element for itself.  Only + - * / sqrt in a fixed order,
// so the CPU agrees bit for bit; L L^T = A is checked to 1e-13 times the size (rounding).
#define PROGRAM "cholesky"
#include "check.h"

#include <cmath>

/// Row `row` of column `k` of the factor, from the columns left of it; `pivot` is the diagonal
/// element of the column (or 0 while computing it).
__host__ __device__ static double element(const double *a, const double *l, int size, int row, int k, double pivot)
{
	double sum = a[row * size + k];
	for (int i = 0; i < k; i++)
		sum -= l[row * size + i] * l[k * size + i];
	return row == k ? sqrt(sum) : sum / pivot;
}

__global__ void column(const double *a, double *l, int size, int k)
{
	__shared__ double pivot;
	if (threadIdx.x == 0)
		pivot = element(a, l, size, k, k, 0.0);
	__syncthreads();
	const int row = k + blockIdx.x * blockDim.x + threadIdx.x;
	if (row == k)
		l[k * size + k] = pivot;
	else if (row < size)
		l[row * size + k] = element(a, l, size, row, k, pivot);
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 96, 1, 4096);
	std::vector<double> a(size * size), expected(size * size, 0.0);
	for (int row = 0; row < size; row++)
		for (int k = 0; k <= row; k++)
			a[row * size + k] = a[k * size + row] =
				row == k ? size + 1.0 : static_cast<int>(hash(row * size + k)) * 0x1p-31;
	double *device_a = to_device(a), *device_l = to_device(expected);
	for (int k = 0; k < size; k++) {
		column<<<(size - k + 63) / 64, 64>>>(device_a, device_l, size, k);
		CUDA(cudaGetLastError());
	}
	const std::vector<double> l = to_host(device_l, size * size);

	for (int k = 0; k < size; k++)
		for (int row = k; row < size; row++)
			expected[row * size + k] =
				element(a.data(), expected.data(), size, row, k, expected[k * size + k]);
	for (int i = 0; i < size * size; i++)
		if (l[i] != expected[i])
			FAIL("element (%d, %d): %.17g instead of %.17g", i / size, i % size, l[i], expected[i]);
	for (int row = 0; row < size; row++)
		for (int k = 0; k <= row; k++) {
			double sum = 0;
			for (int i = 0; i <= k; i++)
				sum += l[row * size + i] * l[k * size + i];
			if (std::fabs(sum - a[row * size + k]) > 1e-13 * size)
				FAIL("L L^T differs from A at (%d, %d) by %g", row, k, sum - a[row * size + k]);
		}
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_l));
	std::printf("ok cholesky of %d x %d\n", size, size);
}
