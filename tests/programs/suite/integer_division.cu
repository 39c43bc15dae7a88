// Quotients and remainders of all widths, signed and unsigned, 8 to 128 bits, over edge values and
// random ones of all magnitudes.
#define PROGRAM "integer_division"
#include "check.h"

#include <limits>

template <typename T> struct Division {
	T quotient, remainder;
};

template <typename T> __host__ __device__ static Division<T> divide(T a, T b)
{
	return {static_cast<T>(a / b), static_cast<T>(a % b)};
}

template <typename T> __global__ void divide_all(const T *a, const T *b, int count, Division<T> *results)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		results[i] = divide(a[i], b[i]);
}

/// Numbers of every magnitude; every fourth is near an end of the range or near zero.
template <typename T> static T number(uint32_t i)
{
	const T low = static_cast<T>(T(1) << (8 * sizeof(T) - 1)); // the least signed value, or the middle
	if (i % 4 == 0)
		return static_cast<T>((i / 4 % 3 == 0 ? T(0) : i / 4 % 3 == 1 ? low : T(-1)) + T(i / 12 % 5) - T(2));
	T value = 0;
	for (size_t k = 0; k < sizeof(T); k += 4)
		value = static_cast<T>(sizeof(T) > 4 ? value << 16 << 16 | T(hash(i * 4 + k)) : T(hash(i)));
	return static_cast<T>(value >> hash(~i) % (8 * sizeof(T)));
}

template <typename T> static void check(const char *type, int count)
{
	std::vector<T> a(count), b(count);
	for (int i = 0; i < count; i++) {
		a[i] = number<T>(i);
		b[i] = number<T>(hash(i));
		if (b[i] == 0 || b[i] == static_cast<T>(-1)) // undefined: x / 0, and the least value by -1
			b[i] = 3;
	}
	T *device_a = to_device(a), *device_b = to_device(b);
	auto *results = device_array<Division<T>>(count);
	divide_all<<<(count + 127) / 128, 128>>>(device_a, device_b, count, results);
	CUDA(cudaGetLastError());
	const std::vector<Division<T>> found = to_host(results, count);
	for (int i = 0; i < count; i++) {
		const Division<T> expected = divide(a[i], b[i]);
		if (found[i].quotient != expected.quotient || found[i].remainder != expected.remainder)
			FAIL("%s %lld / %lld (low halves): %lld rest %lld instead of %lld rest %lld", type,
			     static_cast<long long>(a[i]), static_cast<long long>(b[i]),
			     static_cast<long long>(found[i].quotient), static_cast<long long>(found[i].remainder),
			     static_cast<long long>(expected.quotient), static_cast<long long>(expected.remainder));
	}
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(results));
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 5000, 1, 1 << 24);
	check<int8_t>("int8_t", count);
	check<uint8_t>("uint8_t", count);
	check<int16_t>("int16_t", count);
	check<uint16_t>("uint16_t", count);
	check<int32_t>("int32_t", count);
	check<uint32_t>("uint32_t", count);
	check<int64_t>("int64_t", count);
	check<uint64_t>("uint64_t", count);
	check<__int128>("__int128", count);
	check<unsigned __int128>("unsigned __int128", count);
	std::printf("ok integer_division of %d pairs in ten types\n", count);
}
