// Gaussian elimination: for each column one launch that works out the multipliers and one that
// updates the rest of the matrix and the right-hand side; back substitution on the CPU.  Only
// + - * / in a fixed order: bit for bit.  `--size` is the number of equations, `--iterations` how
// often the system is solved.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FAIL(...) (std::printf("FAIL gaussian " __VA_ARGS__), std::puts(""), std::exit(1))

#define CUDA(call)                                                                 \
	do {                                                                       \
		if (const cudaError_t error = (call))                              \
			FAIL("%s: %s", #call, cudaGetErrorString(error));          \
	} while (0)

struct Options {
	int size = 96, iterations = 1;
	bool json = false;
};

static Options parse(int argc, char **argv)
{
	Options options;
	for (int i = 1; i < argc; i++) {
		const bool size = !std::strcmp(argv[i], "--size"), iterations = !std::strcmp(argv[i], "--iterations");
		if (!std::strcmp(argv[i], "--json")) {
			options.json = true;
		} else if ((size || iterations) && i + 1 < argc) {
			char *end;
			const long value = std::strtol(argv[++i], &end, 10);
			const long least = size ? 1 : 1, most = size ? 16384 : 1000000;
			if (*end || end == argv[i] || value < least || value > most)
				FAIL("%s %s: must be from %ld to %ld", argv[i - 1], argv[i], least, most);
			(size ? options.size : options.iterations) = static_cast<int>(value);
		} else {
			FAIL("does not know %s; usage: %s [--size N] [--iterations N] [--json]", argv[i], argv[0]);
		}
	}
	return options;
}

/// Adds up the time that the device spends between start() and stop().
class Stopwatch {
public:
	Stopwatch()
	{
		CUDA(cudaEventCreate(&begin_));
		CUDA(cudaEventCreate(&end_));
	}

	void start() { CUDA(cudaEventRecord(begin_)); }

	void stop()
	{
		float milliseconds = 0;
		CUDA(cudaEventRecord(end_));
		CUDA(cudaEventSynchronize(end_));
		CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
		seconds_ += milliseconds / 1000.0;
	}

	double seconds() const { return seconds_; }

private:
	cudaEvent_t begin_ = nullptr, end_ = nullptr;
	double seconds_ = 0;
};

static void report(const Options &options, const Stopwatch &watch)
{
	if (options.json)
		std::printf("{\"name\": \"gaussian\", \"size\": %d, \"iterations\": %d, \"kernel_seconds\": %.9f, "
			    "\"ok\": true}\n",
			    options.size, options.iterations, watch.seconds());
	else
		std::printf("ok gaussian of size %d, %d iterations, kernels took %.6f s\n", options.size,
			    options.iterations, watch.seconds());
}

template <typename T> static T *device_array(size_t count)
{
	T *array = nullptr;
	CUDA(cudaMalloc(&array, count * sizeof(T)));
	return array;
}

template <typename T> static std::vector<T> to_host(const T *array, size_t count)
{
	std::vector<T> values(count);
	CUDA(cudaMemcpy(values.data(), array, count * sizeof(T), cudaMemcpyDeviceToHost));
	return values;
}

/// A bijective mix of 32 bits (lowbias32, C. Wellons, "Prospecting for Hash Functions", 2018).
__host__ __device__ static inline uint32_t hash(uint32_t x)
{
	x = (x ^ (x >> 16)) * 0x7feb352du;
	x = (x ^ (x >> 15)) * 0x846ca68bu;
	return x ^ (x >> 16);
}

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
	const Options options = parse(argc, argv);
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
