// Iteration counts of the Mandelbrot set in float and in double: much divergence within a warp.
// Only + - *, so the CPU counts the same.
#define PROGRAM "mandelbrot"
#include "check.h"

static const int LIMIT = 200;

template <typename Real> __host__ __device__ static int iterations(int column, int row, int size)
{
	const Real x = Real(3) * column / size - Real(2.25), y = Real(3) * row / size - Real(1.5);
	Real re = 0, im = 0;
	int n = 0;
	while (n < LIMIT && re * re + im * im <= Real(4)) {
		const Real next = re * re - im * im + x;
		im = Real(2) * re * im + y;
		re = next;
		n++;
	}
	return n;
}

template <typename Real> __global__ void count(int *counts, int size)
{
	const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
	if (column < size && row < size)
		counts[row * size + column] = iterations<Real>(column, row, size);
}

template <typename Real> static long check(int size, const char *type)
{
	int *device_counts = device_array<int>(size * size);
	const dim3 threads(32, 4), blocks((size + 31) / 32, (size + 3) / 4);
	count<Real><<<blocks, threads>>>(device_counts, size);
	CUDA(cudaGetLastError());
	const std::vector<int> counts = to_host(device_counts, size * size);
	long inside = 0;
	for (int i = 0; i < size * size; i++) {
		const int expected = iterations<Real>(i % size, i / size, size);
		if (counts[i] != expected)
			FAIL("%s, pixel (%d, %d): %d iterations instead of %d", type, i % size, i / size, counts[i],
			     expected);
		inside += expected == LIMIT;
	}
	CUDA(cudaFree(device_counts));
	return inside;
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 128, 1, 16384);
	const long inside = check<float>(size, "float");
	check<double>(size, "double");
	std::printf("ok mandelbrot of %d x %d pixels, %ld inside\n", size, size, inside);
}
