// Sparse matrix times vector in compressed rows, a thread per row and a warp per row.  Values are
// small whole numbers in double, so that sums are exact in any order.
#define PROGRAM "spmv"
#include "check.h"

__global__ void by_threads(const int *starts, const int *columns, const double *values, const double *x, double *y,
			   int rows)
{
	const int row = blockIdx.x * blockDim.x + threadIdx.x;
	if (row >= rows)
		return;
	double sum = 0;
	for (int i = starts[row]; i < starts[row + 1]; i++)
		sum += values[i] * x[columns[i]];
	y[row] = sum;
}

__global__ void by_warps(const int *starts, const int *columns, const double *values, const double *x, double *y,
			 int rows)
{
	const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
	if (row >= rows)
		return;
	double sum = 0;
	for (int i = starts[row] + lane; i < starts[row + 1]; i += 32)
		sum += values[i] * __ldg(&x[columns[i]]);
	for (int offset = 16; offset > 0; offset /= 2)
		sum += __shfl_down_sync(0xffffffffu, sum, offset);
	if (lane == 0)
		y[row] = sum;
}

int main(int argc, char **argv)
{
	const int rows = size_option(argc, argv, 3000, 1, 1 << 22);
	std::vector<int> starts(1, 0), columns;
	std::vector<double> values, x(rows), expected(rows, 0.0);
	for (int row = 0; row < rows; row++) {
		x[row] = static_cast<int>(hash(row) % 2001) - 1000;
		const int entries = row % 97 == 0 ? 200 : hash(row + 1) % 12; // a few long rows
		for (int k = 0; k < entries; k++) {
			columns.push_back(hash(row * 256 + k) % rows);
			values.push_back(static_cast<int>(hash(~(row * 256 + k)) % 201) - 100);
		}
		starts.push_back(static_cast<int>(columns.size()));
	}
	for (int row = 0; row < rows; row++)
		for (int i = starts[row]; i < starts[row + 1]; i++)
			expected[row] += values[i] * x[columns[i]];

	int *device_starts = to_device(starts), *device_columns = to_device(columns);
	double *device_values = to_device(values), *device_x = to_device(x), *y = device_array<double>(rows);
	for (auto kernel : {by_threads, by_warps}) {
		const int threads = kernel == by_threads ? rows : 32 * rows;
		CUDA(cudaMemset(y, 0xff, rows * sizeof *y));
		kernel<<<(threads + 127) / 128, 128>>>(device_starts, device_columns, device_values, device_x, y, rows);
		CUDA(cudaGetLastError());
		const std::vector<double> result = to_host(y, rows);
		for (int row = 0; row < rows; row++)
			if (!(result[row] == expected[row]))
				FAIL("%s, row %d: %.17g instead of %.17g", kernel == by_threads ? "threads" : "warps", row,
				     result[row], expected[row]);
	}
	for (void *array : {(void *)device_starts, (void *)device_columns, (void *)device_values, (void *)device_x, (void *)y})
		CUDA(cudaFree(array));
	std::printf("ok spmv of %d rows, %zu entries\n", rows, values.size());
}
