// bfloat16: + - * and fma, conversions, comparisons and the packed forms.  Products and sums are
// worked out in double and rounded once on the CPU; pairs whose exact sum a double can't hold are
// left out of the sums.
#define PROGRAM "bfloat16_arithmetic"
#include "check.h"

#include <cmath>

#include <cuda_bf16.h>

struct Results {
	uint16_t add, multiply, fused, less, from_float, packed_low, packed_high;
};

__device__ static uint16_t bits(__nv_bfloat16 x)
{
	return __bfloat16_as_ushort(x);
}

__global__ void compute(const uint16_t *a_bits, const uint16_t *b_bits, int count, Results *results)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	const __nv_bfloat16 a = __ushort_as_bfloat16(a_bits[i]), b = __ushort_as_bfloat16(b_bits[i]);
	const __nv_bfloat162 packed = __hadd2(__halves2bfloat162(a, b), __halves2bfloat162(b, b));
	results[i] = {bits(__hadd(a, b)),
		      bits(__hmul(a, b)),
		      bits(__hfma(a, b, b)),
		      static_cast<uint16_t>(__hlt(a, b)),
		      bits(__float2bfloat16_rn(__bfloat162float(a) * 1.001f)),
		      bits(__low2bfloat16(packed)),
		      bits(__high2bfloat16(packed))};
}

static double value_of(uint16_t x)
{
	const uint32_t word = static_cast<uint32_t>(x) << 16;
	float value;
	std::memcpy(&value, &word, sizeof value);
	return value;
}

/// The bfloat16 nearest to `x`, ties to even, for normal results.
static uint16_t nearest(double x)
{
	int exponent;
	const double fraction = std::frexp(std::fabs(x), &exponent); // in [1/2, 1)
	const uint32_t significand = x == 0 ? 0 : static_cast<uint32_t>(std::nearbyint(fraction * 256));
	const uint32_t magnitude = x == 0 ? 0 : (exponent + 125) * 128 + significand;
	return static_cast<uint16_t>((std::signbit(x) ? 0x8000 : 0) | magnitude);
}

static void check(const char *what, int i, uint16_t found, double exact)
{
	if (found != nearest(exact))
		FAIL("%s, pair %d: %04x instead of %04x", what, i, found, nearest(exact));
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 20000, 1, 1 << 26);
	std::vector<uint16_t> a(count), b(count);
	for (int i = 0; i < count; i++) {
		// Exponents from 2^-20 to 2^20: every result is normal, every sum exact in double.
		a[i] = (hash(i) & 0x807f) | (127 - 20 + hash(i) % 41) << 7;
		b[i] = (hash(~i) & 0x807f) | (127 - 20 + hash(~i) % 41) << 7;
	}
	uint16_t *device_a = to_device(a), *device_b = to_device(b);
	Results *device_results = device_array<Results>(count);
	compute<<<(count + 127) / 128, 128>>>(device_a, device_b, count, device_results);
	CUDA(cudaGetLastError());
	const std::vector<Results> results = to_host(device_results, count);
	for (int i = 0; i < count; i++) {
		const double x = value_of(a[i]), y = value_of(b[i]);
		check("a + b", i, results[i].add, x + y);
		check("a * b", i, results[i].multiply, x * y);
		check("a * b + b", i, results[i].fused, x * y + y);
		if (results[i].less != (x < y))
			FAIL("a < b, pair %d: %d", i, results[i].less);
		check("from float", i, results[i].from_float, static_cast<float>(x) * 1.001f);
		check("packed a + b", i, results[i].packed_low, x + y);
		check("packed b + b", i, results[i].packed_high, y + y);
	}
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(device_results));
	std::printf("ok bfloat16_arithmetic of %d pairs\n", count);
}
