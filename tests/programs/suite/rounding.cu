// Floating point to the last bit: + - * / sqrt fma in float and double with all four rounding
// modes, and conversions between integers and floats with theirs, against the CPU's arithmetic in
// the same mode.  Subnormal numbers and infinities are among the operands.
#define PROGRAM "rounding"
#include "check.h"

#include <cfenv>
#include <cmath>

template <typename Real> struct Results {
	Real add[4], multiply[4], divide[4], root[4], fused[4], from_int[4];
	long long to_int[4];
	float narrowed[4];
};

#define IN_ALL_MODES(to, prefix, ...)                                                    \
	do {                                                                             \
		to[0] = prefix##_rn(__VA_ARGS__);                                        \
		to[1] = prefix##_rz(__VA_ARGS__);                                        \
		to[2] = prefix##_ru(__VA_ARGS__);                                        \
		to[3] = prefix##_rd(__VA_ARGS__);                                        \
	} while (0)

static const int MODES[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};
static const char *const MODE_NAMES[4] = {"to nearest", "toward zero", "up", "down"};

__device__ static void compute(float a, float b, float c, long long n, Results<float> &r)
{
	IN_ALL_MODES(r.add, __fadd, a, b);
	IN_ALL_MODES(r.multiply, __fmul, a, b);
	IN_ALL_MODES(r.divide, __fdiv, a, b);
	IN_ALL_MODES(r.root, __fsqrt, fabsf(a));
	IN_ALL_MODES(r.fused, __fmaf, a, b, c);
	IN_ALL_MODES(r.from_int, __ll2float, n);
	IN_ALL_MODES(r.to_int, __float2ll, c);
	IN_ALL_MODES(r.narrowed, __int2float, static_cast<int>(n));
}

__device__ static void compute(double a, double b, double c, long long n, Results<double> &r)
{
	IN_ALL_MODES(r.add, __dadd, a, b);
	IN_ALL_MODES(r.multiply, __dmul, a, b);
	IN_ALL_MODES(r.divide, __ddiv, a, b);
	IN_ALL_MODES(r.root, __dsqrt, fabs(a));
	IN_ALL_MODES(r.fused, __fma, a, b, c);
	IN_ALL_MODES(r.from_int, __ll2double, n);
	IN_ALL_MODES(r.to_int, __double2ll, c);
	IN_ALL_MODES(r.narrowed, __double2float, a);
}

template <typename Real>
__global__ void compute_all(const Real *a, const Real *b, const Real *c, const long long *n, int count, Results<Real> *results)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		compute(a[i], b[i], c[i], n[i], results[i]);
}

static float number(uint32_t i, float)
{
	const uint32_t edges[] = {0, 0x80000000u, 1, 0x807fffffu, 0x00800000u, 0x3f800000u, 0x7f7fffffu, 0xff800000u};
	uint32_t bits = i % 3 ? (hash(i) & 0x807fffffu) | (97 + hash(~i) % 60) << 23 : i % 2 ? edges[hash(i) % 8] : hash(i);
	if ((bits & 0x7fffffffu) > 0x7f800000u)
		bits &= 0xff800000u;
	float value;
	std::memcpy(&value, &bits, sizeof value);
	return value;
}

static double number(uint32_t i, double)
{
	const uint64_t edges[] = {0, 1ull << 63, 1, 0x800fffffffffffffull, 1ull << 52, 0x3ff0000000000000ull, 0x7fefffffffffffffull,
				  0xfff0000000000000ull};
	const uint64_t random = static_cast<uint64_t>(hash(i)) << 32 | hash(i ^ 0x55555555u);
	uint64_t bits = i % 3 ? (random & 0x800fffffffffffffull) | (993ull + hash(~i) % 60) << 52
		      : i % 2 ? edges[hash(i) % 8] : random;
	if ((bits & ~(1ull << 63)) > 0x7ff0000000000000ull)
		bits &= 0xfff0000000000000ull;
	double value;
	std::memcpy(&value, &bits, sizeof value);
	return value;
}

template <typename T> static void same(const char *what, int mode, int i, T found, T expected)
{
	if (std::isnan(static_cast<double>(expected)) ? !std::isnan(static_cast<double>(found))
						      : std::memcmp(&found, &expected, sizeof found) != 0)
		FAIL("%zu bytes, %s, rounded %s, operands %d: %.17g instead of %.17g", sizeof found, what, MODE_NAMES[mode], i,
		     static_cast<double>(found), static_cast<double>(expected));
}

/// Operands through volatile, so that the compiler computes nothing in another mode.
template <typename Real> static void check(int count)
{
	std::vector<Real> a(count), b(count), c(count);
	std::vector<long long> n(count);
	for (int i = 0; i < count; i++) {
		a[i] = number(3 * i, Real());
		b[i] = number(3 * i + 1, Real());
		c[i] = number(3 * i + 2, Real());
		n[i] = static_cast<long long>(static_cast<uint64_t>(hash(i)) << 32 | hash(~i)) >> hash(i + 1) % 64;
	}
	Real *device_a = to_device(a), *device_b = to_device(b), *device_c = to_device(c);
	long long *device_n = to_device(n);
	auto *device_results = device_array<Results<Real>>(count);
	compute_all<<<(count + 127) / 128, 128>>>(device_a, device_b, device_c, device_n, count, device_results);
	CUDA(cudaGetLastError());
	const std::vector<Results<Real>> results = to_host(device_results, count);
	for (int mode = 0; mode < 4; mode++) {
		for (int i = 0; i < count; i++) {
			volatile Real x = a[i], y = b[i], z = c[i];
			volatile long long whole = n[i];
			volatile int narrow = static_cast<int>(n[i]);
			const Results<Real> &r = results[i];
			std::fesetround(MODES[mode]);
			volatile Real sum = x + y, product = x * y, quotient = x / y;
			volatile Real root = std::sqrt(std::fabs(x)), fused = std::fma(x, y, z);
			volatile Real from_int = static_cast<Real>(whole);
			volatile float narrowed = sizeof(Real) == 4 ? static_cast<float>(narrow) : static_cast<float>(x);
			const Real rounded = std::nearbyint(z);
			std::fesetround(FE_TONEAREST);
			same("a + b", mode, i, r.add[mode], static_cast<Real>(sum));
			same("a * b", mode, i, r.multiply[mode], static_cast<Real>(product));
			same("a / b", mode, i, r.divide[mode], static_cast<Real>(quotient));
			same("sqrt", mode, i, r.root[mode], static_cast<Real>(root));
			same("fma", mode, i, r.fused[mode], static_cast<Real>(fused));
			same("from integer", mode, i, r.from_int[mode], static_cast<Real>(from_int));
			same("narrowed", mode, i, r.narrowed[mode], static_cast<float>(narrowed));
			if (std::fabs(rounded) < Real(9.2e18) && r.to_int[mode] != static_cast<long long>(rounded))
				FAIL("to integer, rounded %s: %lld instead of %lld", MODE_NAMES[mode], r.to_int[mode],
				     static_cast<long long>(rounded));
		}
	}
	for (void *array : {(void *)device_a, (void *)device_b, (void *)device_c, (void *)device_n, (void *)device_results})
		CUDA(cudaFree(array));
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 4000, 1, 1 << 24);
	check<float>(count);
	check<double>(count);
	std::printf("ok rounding of %d operands in four modes, float and double\n", count);
}
