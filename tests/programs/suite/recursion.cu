// Recursion on the GPU: Fibonacci and Ackermann numbers, mutual recursion, and a quicksort that
// each thread runs on its own array; depths differ within a warp.
#define PROGRAM "recursion"
#include "check.h"

#include <algorithm>

__host__ __device__ static int fibonacci(int n)
{
	return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

__host__ __device__ static int ackermann(int m, int n)
{
	return m == 0 ? n + 1 : ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

__host__ __device__ static bool is_odd(int n);

__host__ __device__ __noinline__ static bool is_even(int n)
{
	return n == 0 || is_odd(n - 1);
}

__host__ __device__ __noinline__ static bool is_odd(int n)
{
	return n != 0 && is_even(n - 1);
}

__device__ static void quicksort(int *values, int count)
{
	if (count < 2)
		return;
	const int pivot = values[count / 2];
	int left = 0, right = count - 1;
	while (left <= right) {
		while (values[left] < pivot)
			left++;
		while (values[right] > pivot)
			right--;
		if (left <= right) {
			const int kept = values[left];
			values[left++] = values[right];
			values[right--] = kept;
		}
	}
	quicksort(values, right + 1);
	quicksort(values + left, count - left);
}

static const int LENGTH = 20;

__global__ void recurse(int *fibonaccis, int *ackermanns, int *evens, int *arrays)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	fibonaccis[i] = fibonacci(i % 12);
	ackermanns[i] = ackermann(i % 3, i % 5);
	evens[i] = is_even(i % 40);
	quicksort(arrays + i * LENGTH, LENGTH);
}

int main(int argc, char **argv)
{
	const int threads = 64, blocks = size_option(argc, argv, 2, 1, 1 << 14), count = threads * blocks;
	CUDA(cudaDeviceSetLimit(cudaLimitStackSize, 16384));
	std::vector<int> values(count * LENGTH);
	for (size_t i = 0; i < values.size(); i++)
		values[i] = static_cast<int>(hash(i) >> 8);
	int *fibonaccis = device_array<int>(count), *ackermanns = device_array<int>(count);
	int *evens = device_array<int>(count), *arrays = to_device(values);
	recurse<<<blocks, threads>>>(fibonaccis, ackermanns, evens, arrays);
	CUDA(cudaGetLastError());
	const std::vector<int> f = to_host(fibonaccis, count), a = to_host(ackermanns, count), e = to_host(evens, count);
	const std::vector<int> sorted = to_host(arrays, values.size());
	for (int i = 0; i < count; i++) {
		if (f[i] != fibonacci(i % 12))
			FAIL("fibonacci(%d) = %d", i % 12, f[i]);
		if (a[i] != ackermann(i % 3, i % 5))
			FAIL("ackermann(%d, %d) = %d", i % 3, i % 5, a[i]);
		if (e[i] != (i % 40 % 2 == 0))
			FAIL("is_even(%d) = %d", i % 40, e[i]);
		std::sort(&values[i * LENGTH], &values[i * LENGTH] + LENGTH);
	}
	if (sorted != values)
		FAIL("quicksort left an array unsorted");
	for (int *array : {fibonaccis, ackermanns, evens, arrays})
		CUDA(cudaFree(array));
	std::printf("ok recursion in %d threads\n", count);
}
