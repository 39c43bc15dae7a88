// Gaussian elimination: for each column one launch that works out the multipliers and one that
// updates the rest of the matrix and the right-hand side; back substitution on the CPU.  Only
// + - * / in a fixed order: bit for bit.  `--size` is the number of equations, `--iterations` how
// often the system is solved.
#define PROGRAM "gaussian"
#include "workload.h"

#include <cmath>

__global__ void find_multipliers(const float *matrix, float *multipliers, int size, int k)
{
	const int row = k + 1 + blockIdx.x * blockDim.x + threadIdx.x;
	if (row < size)
		multipliers[row] = matrix[static_cast<size_t>(row) * size + k] / matrix[static_cast<size_t>(k) * size + k];
}

__global__ void eliminate(float *matrix, float *right, const float *multipliers, int size, int k)
{
	const int row = k + 1 + blockIdx.y * blockDim.y + threadIdx.y;
	const int column = k + blockIdx.x * blockDim.x + threadIdx.x;
	if (row >= size || column >= size)
		return;
	matrix[static_cast<size_t>(row) * size + column] -= multipliers[row] * matrix[static_cast<size_t>(k) * size + column];
	if (column == k)
		right[row] -= multipliers[row] * right[k];
}

static std::vector<double> substitute(const std::vector<float> &matrix, const std::vector<float> &right)
{
	const int size = static_cast<int>(right.size());
	std::vector<double> solution(size);
	for (int row = size - 1; row >= 0; row--) {
		double sum = right[row];
		for (int k = row + 1; k < size; k++)
			sum -= matrix[static_cast<size_t>(row) * size + k] * solution[k];
		solution[row] = sum / matrix[static_cast<size_t>(row) * size + row];
	}
	return solution;
}

int main(int argc, char **argv)
{
	const Options options = parse(argc, argv, { 96, 1 }, 1, 16384);
	const int size = options.size;
	const size_t cells = static_cast<size_t>(size) * size;
	// Diagonally dominant, so no pivoting is needed; the solution is known: x[i] = i % 10.
	std::vector<float> matrix(cells), right(size);
	for (int row = 0; row < size; row++) {
		double sum = 0;
		for (int k = 0; k < size; k++) {
			float &cell = matrix[static_cast<size_t>(row) * size + k];
			cell = row == k ? size : static_cast<int>(hash(row * size + k)) * 0x1p-32f;
			sum += static_cast<double>(cell) * (k % 10);
		}
		right[row] = sum;
	}

	Stopwatch watch;
	float *device_matrix = device_array<float>(cells), *device_right = device_array<float>(size);
	float *multipliers = device_array<float>(size);
	for (int iteration = 0; iteration < options.iterations; iteration++) {
		CUDA(cudaMemcpy(device_matrix, matrix.data(), cells * sizeof(float), cudaMemcpyHostToDevice));
		CUDA(cudaMemcpy(device_right, right.data(), size * sizeof(float), cudaMemcpyHostToDevice));
		watch.start();
		for (int k = 0; k < size - 1; k++) {
			const int rest = size - k;
			find_multipliers<<<(rest + 127) / 128, 128>>>(device_matrix, multipliers, size, k);
			eliminate<<<dim3((rest + 31) / 32, (rest + 7) / 8), dim3(32, 8)>>>(device_matrix, device_right,
											   multipliers, size, k);
			CUDA(cudaGetLastError());
		}
		watch.stop();
	}

	const std::vector<float> upper = to_host(device_matrix, cells), reduced = to_host(device_right, size);
	for (int k = 0; k < size - 1; k++)
		for (int row = k + 1; row < size; row++) {
			const float multiplier =
				matrix[static_cast<size_t>(row) * size + k] / matrix[static_cast<size_t>(k) * size + k];
			for (int column = k; column < size; column++)
				matrix[static_cast<size_t>(row) * size + column] -=
					multiplier * matrix[static_cast<size_t>(k) * size + column];
			right[row] -= multiplier * right[k];
		}
	for (size_t i = 0; i < cells; i++)
		if (upper[i] != matrix[i])
			FAIL("element (%zu, %zu): %.9g instead of %.9g", i / size, i % size, upper[i], matrix[i]);
	if (reduced != right)
		FAIL("the right-hand side differs");
	const std::vector<double> solution = substitute(upper, reduced);
	for (int i = 0; i < size; i++) // rounding of float times the size of the numbers, generously
		if (std::fabs(solution[i] - i % 10) > 1e-3)
			FAIL("unknown %d is %g instead of %d", i, solution[i], i % 10);
	for (float *array : {device_matrix, device_right, multipliers})
		CUDA(cudaFree(array));
	report(options, watch);
}
