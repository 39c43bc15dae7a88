// Half precision: + - * / and fma, comparisons, conversions and the packed forms, over all kinds
// of values including subnormal ones and infinities.  A float holds products and sums of halves
// with more than twice their precision, so rounding the float result again gives the correctly
// rounded half (fma: from double, over values whose exact result a double holds).
#define PROGRAM "half_arithmetic"
#include "check.h"

#include <cmath>

#include <cuda_fp16.h>

struct Results {
	uint16_t add, subtract, multiply, divide, fused, less, minimum, from_float, from_int, packed_low, packed_high;
};

__device__ static uint16_t bits(__half x)
{
	return __half_as_ushort(x);
}

__global__ void compute(const uint16_t *a_bits, const uint16_t *b_bits, int count, Results *results)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	const __half a = __ushort_as_half(a_bits[i]), b = __ushort_as_half(b_bits[i]);
	const __half2 packed = __hmul2(__halves2half2(a, b), __halves2half2(b, b));
	results[i] = {bits(__hadd(a, b)),
		      bits(__hsub(a, b)),
		      bits(__hmul(a, b)),
		      bits(__hdiv(a, b)),
		      bits(__hfma(a, b, a)),
		      static_cast<uint16_t>(__hlt(a, b)),
		      bits(__hlt(a, b) ? a : b),
		      bits(__float2half_rn(__half2float(a) * 1.0009765f)),
		      bits(__int2half_rn(static_cast<int>(a_bits[i]) * 3 - 90000)),
		      bits(__low2half(packed)),
		      bits(__high2half(packed))};
}

/// Value of a half; written here so that the check does not rest on the header's conversions.
static double value_of(uint16_t half)
{
	const int exponent = half >> 10 & 31, fraction = half & 1023;
	const double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
			       : exponent      ? std::ldexp(1024 + fraction, exponent - 25)
					       : std::ldexp(fraction, -24);
	return half & 0x8000 ? -magnitude : magnitude;
}

/// The half nearest to `x`, ties to even.
static uint16_t nearest(double x)
{
	const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
	const double magnitude = std::fabs(x);
	if (std::isnan(x))
		return 0x7fff;
	if (magnitude >= 65520.0)
		return sign | 0x7c00;
	int exponent = magnitude > 0 ? std::ilogb(magnitude) : -14;
	if (exponent < -14)
		exponent = -14;
	const double scaled = std::nearbyint(std::ldexp(magnitude, 10 - exponent)); // a carry moves to the exponent
	return sign | static_cast<uint16_t>(scaled + (exponent + 14) * 1024);
}

static void check(const char *what, int i, uint16_t found, double exact)
{
	const uint16_t expected = nearest(exact);
	if (std::isnan(exact) ? !std::isnan(value_of(found)) : found != expected)
		FAIL("%s, pair %d: %04x instead of %04x", what, i, found, expected);
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 20000, 1, 1 << 26);
	const uint16_t edges[] = {0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x3555};
	const int edge_count = sizeof edges / sizeof *edges;
	std::vector<uint16_t> a(count), b(count);
	for (int i = 0; i < count; i++) {
		a[i] = i < edge_count * edge_count ? edges[i / edge_count] : hash(i) & 0xffff;
		b[i] = i < edge_count * edge_count ? edges[i % edge_count] : hash(i) >> 16;
		for (uint16_t *half : {&a[i], &b[i]})
			if ((*half & 0x7c00) == 0x7c00)
				*half &= 0xfc00; // infinities, but no NaN as input
	}
	uint16_t *device_a = to_device(a), *device_b = to_device(b);
	Results *device_results = device_array<Results>(count);
	compute<<<(count + 127) / 128, 128>>>(device_a, device_b, count, device_results);
	CUDA(cudaGetLastError());
	const std::vector<Results> results = to_host(device_results, count);
	for (int i = 0; i < count; i++) {
		const double x = value_of(a[i]), y = value_of(b[i]);
		const Results &r = results[i];
		check("a + b", i, r.add, x + y);
		check("a - b", i, r.subtract, x - y);
		check("a * b", i, r.multiply, x * y);
		check("a / b", i, r.divide, static_cast<float>(x) / static_cast<float>(y));
		// x y + x is exact in double unless the terms lie too far apart; then it is left out.
		if (std::isinf(x) || std::isinf(y) || x == 0 || std::abs(std::ilogb(y == 0 ? 1 : y)) < 16)
			check("a * b + a", i, r.fused, std::fma(x, y, x));
		if (r.less != (x < y))
			FAIL("a < b, pair %d: %d", i, r.less);
		check("the lesser", i, r.minimum, x < y ? x : y);
		check("from float", i, r.from_float, static_cast<float>(x) * 1.0009765f);
		check("from int", i, r.from_int, static_cast<int>(a[i]) * 3 - 90000);
		check("packed a * b", i, r.packed_low, x * y);
		check("packed b * b", i, r.packed_high, y * y);
	}
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(device_results));
	std::printf("ok half_arithmetic of %d pairs\n", count);
}
