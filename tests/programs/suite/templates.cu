// Templates in device code: kernels over types and sizes, variadic ones, constexpr, lambdas and
// functors as parameters, recursion at compile time.
#define PROGRAM "templates"
#include "check.h"

#include <type_traits>

struct Triple {
	template <typename T> __host__ __device__ T operator()(T x) const { return static_cast<T>(3 * x); }
};

struct Offset {
	int by;
	template <typename T> __host__ __device__ T operator()(T x) const { return static_cast<T>(x + by); }
};

template <typename T, int REPEAT, typename Function> __host__ __device__ static T repeat(T x, Function function)
{
	if constexpr (REPEAT == 0)
		return x;
	else
		return repeat<T, REPEAT - 1>(function(x), function);
}

template <typename T, int REPEAT, typename Function>
__global__ void map(const T *in, T *out, int count, Function function)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		out[i] = repeat<T, REPEAT>(in[i], function);
}

template <typename... Arrays> __global__ void sum_rows(long long *out, int count, Arrays... arrays)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		out[i] = (static_cast<long long>(arrays[i]) + ... + 0ll);
}

template <unsigned N> struct Factorial {
	static constexpr unsigned long long value = N * Factorial<N - 1>::value;
};

template <> struct Factorial<0> {
	static constexpr unsigned long long value = 1;
};

template <unsigned... N> __global__ void factorials(unsigned long long *out)
{
	const unsigned long long values[] = {Factorial<N>::value...};
	if (threadIdx.x < sizeof...(N))
		out[threadIdx.x] = values[threadIdx.x];
}

template <typename T, int REPEAT, typename Function> static void check(int count, Function function, const char *what)
{
	std::vector<T> values(count);
	for (int i = 0; i < count; i++)
		values[i] = static_cast<T>(hash(i) >> 12);
	T *in = to_device(values), *out = device_array<T>(count);
	map<T, REPEAT><<<(count + 63) / 64, 64>>>(in, out, count, function);
	CUDA(cudaGetLastError());
	const std::vector<T> mapped = to_host(out, count);
	for (int i = 0; i < count; i++)
		if (mapped[i] != repeat<T, REPEAT>(values[i], function))
			FAIL("%s, element %d is wrong", what, i);
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 1000, 1, 1 << 26);
	check<int8_t, 1>(count, Triple(), "signed char");
	check<uint16_t, 3>(count, Triple(), "unsigned short");
	check<int, 4>(count, Offset{-7}, "int");
	check<long long, 9>(count, Triple(), "long long");
	check<float, 2>(count, Triple(), "float");
	check<double, 5>(count, Offset{1000}, "double");

	long long *sums = device_array<long long>(count);
	std::vector<int> ints(count);
	std::vector<short> shorts(count);
	std::vector<double> doubles(count);
	for (int i = 0; i < count; i++) {
		ints[i] = static_cast<int>(hash(i));
		shorts[i] = static_cast<short>(hash(~i));
		doubles[i] = i * 1e6;
	}
	int *device_ints = to_device(ints);
	short *device_shorts = to_device(shorts);
	double *device_doubles = to_device(doubles);
	sum_rows<<<(count + 63) / 64, 64>>>(sums, count, device_ints, device_shorts, device_doubles);
	CUDA(cudaGetLastError());
	const std::vector<long long> found = to_host(sums, count);
	for (int i = 0; i < count; i++)
		if (found[i] != ints[i] + shorts[i] + static_cast<long long>(doubles[i]))
			FAIL("sum of row %d: %lld", i, found[i]);

	unsigned long long *products = device_array<unsigned long long>(4);
	factorials<0, 5, 13, 20><<<1, 32>>>(products);
	CUDA(cudaGetLastError());
	const std::vector<unsigned long long> expected = {1, 120, 6227020800, 2432902008176640000};
	if (to_host(products, 4) != expected)
		FAIL("a factorial is wrong");
	for (void *array : {(void *)sums, (void *)device_ints, (void *)device_shorts, (void *)device_doubles, (void *)products})
		CUDA(cudaFree(array));
	std::printf("ok templates of %d elements\n", count);
}
