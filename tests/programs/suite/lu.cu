// LU decomposition with partial pivoting in double, right-looking; the pivot is found on the GPU.
// Every update is one multiplication and one subtraction in the order of the columns, so the
// CPU's factors and permutation agree bit for bit; P A = L U is checked to 1e-12 of the largest
// element times the size (the usual backward error bound with a modest growth factor).
#define PROGRAM "lu"
#include "check.h"

#include <cmath>
#include <utility>

static const int THREADS = 128;

/// One block: finds the largest element of column k at or below the diagonal (the topmost of
/// equals), notes it, and divides nothing yet.
__global__ void find_pivot(const double *a, int size, int k, int *pivots)
{
	__shared__ double best[THREADS];
	__shared__ int where[THREADS];
	double largest = -1.0;
	int row_of_largest = size;
	for (int row = k + threadIdx.x; row < size; row += THREADS)
		if (fabs(a[row * size + k]) > largest) {
			largest = fabs(a[row * size + k]);
			row_of_largest = row;
		}
	best[threadIdx.x] = largest;
	where[threadIdx.x] = row_of_largest;
	for (int half = THREADS / 2; half > 0; half /= 2) {
		__syncthreads();
		const int other = threadIdx.x + half;
		if (threadIdx.x < half && (best[other] > best[threadIdx.x] ||
					   (best[other] == best[threadIdx.x] && where[other] < where[threadIdx.x]))) {
			best[threadIdx.x] = best[other];
			where[threadIdx.x] = where[other];
		}
	}
	if (threadIdx.x == 0)
		pivots[k] = where[0];
}

__global__ void swap_rows(double *a, int size, int k, const int *pivots)
{
	const int column = blockIdx.x * THREADS + threadIdx.x;
	if (column < size && pivots[k] != k) {
		const double kept = a[k * size + column];
		a[k * size + column] = a[pivots[k] * size + column];
		a[pivots[k] * size + column] = kept;
	}
}

__global__ void scale_column(double *a, int size, int k)
{
	const int row = k + 1 + blockIdx.x * THREADS + threadIdx.x;
	if (row < size)
		a[row * size + k] /= a[k * size + k];
}

__global__ void update(double *a, int size, int k)
{
	const int column = k + 1 + blockIdx.x * blockDim.x + threadIdx.x;
	const int row = k + 1 + blockIdx.y * blockDim.y + threadIdx.y;
	if (row < size && column < size)
		a[row * size + column] -= a[row * size + k] * a[k * size + column];
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 80, 1, 4096);
	std::vector<double> matrix(size * size);
	for (int i = 0; i < size * size; i++)
		matrix[i] = static_cast<int>(hash(i)) * 0x1p-31;
	double *a = to_device(matrix);
	int *device_pivots = device_array<int>(size);
	const int line = (size + THREADS - 1) / THREADS;
	for (int k = 0; k < size; k++) {
		find_pivot<<<1, THREADS>>>(a, size, k, device_pivots);
		swap_rows<<<line, THREADS>>>(a, size, k, device_pivots);
		scale_column<<<line, THREADS>>>(a, size, k);
		update<<<dim3((size - k + 15) / 16, (size - k + 7) / 8), dim3(16, 8)>>>(a, size, k);
		CUDA(cudaGetLastError());
	}
	const std::vector<double> lu = to_host(a, size * size);
	const std::vector<int> pivots = to_host(device_pivots, size);

	std::vector<double> expected = matrix, permuted = matrix;
	for (int k = 0; k < size; k++) {
		int pivot = k;
		for (int row = k + 1; row < size; row++)
			if (std::fabs(expected[row * size + k]) > std::fabs(expected[pivot * size + k]))
				pivot = row;
		if (pivots[k] != pivot)
			FAIL("pivot of column %d: row %d instead of %d", k, pivots[k], pivot);
		for (int column = 0; column < size; column++) {
			std::swap(expected[k * size + column], expected[pivot * size + column]);
			if (pivot != k)
				std::swap(permuted[k * size + column], permuted[pivot * size + column]);
		}
		for (int row = k + 1; row < size; row++) {
			const double factor = expected[row * size + k] /= expected[k * size + k];
			for (int column = k + 1; column < size; column++)
				expected[row * size + column] -= factor * expected[k * size + column];
		}
	}
	double worst = 0;
	for (int row = 0; row < size; row++)
		for (int column = 0; column < size; column++) {
			if (lu[row * size + column] != expected[row * size + column])
				FAIL("element (%d, %d): %.17g instead of %.17g", row, column, lu[row * size + column],
				     expected[row * size + column]);
			double sum = row <= column ? lu[row * size + column] : 0.0;
			for (int k = 0; k < (row < column + 1 ? row : column + 1); k++)
				sum += lu[row * size + k] * lu[k * size + column];
			worst = std::fmax(worst, std::fabs(sum - permuted[row * size + column]));
		}
	if (worst > 1e-12 * size)
		FAIL("L U is %g away from P A", worst);
	CUDA(cudaFree(a));
	CUDA(cudaFree(device_pivots));
	std::printf("ok lu of %d x %d, residual %.1e\n", size, size, worst);
}
