// Conversions between float, half and the floats of 8 bits: the device's instructions against the
// header's own arithmetic on the host, for every value of a half.
#define PROGRAM "fp8_conversions"
#include "check.h"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

struct Converted {
	uint8_t e4m3, e5m2;
	uint16_t from_e4m3, from_e5m2;
};

__host__ __device__ static Converted convert(uint16_t bits)
{
	const __half half = __ushort_as_half(bits);
	Converted result;
	result.e4m3 = __nv_cvt_float_to_fp8(__half2float(half), __NV_SATFINITE, __NV_E4M3);
	result.e5m2 = __nv_cvt_halfraw_to_fp8(static_cast<__half_raw>(half), __NV_SATFINITE, __NV_E5M2);
	result.from_e4m3 = __half_raw(__nv_cvt_fp8_to_halfraw(bits & 255, __NV_E4M3)).x;
	result.from_e5m2 = __half_raw(__nv_cvt_fp8_to_halfraw(bits >> 8, __NV_E5M2)).x;
	return result;
}

__global__ void convert_all(Converted *out)
{
	const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	out[i] = convert(static_cast<uint16_t>(i));
}

/// Which NaN comes out is the processor's business.
static bool same_half(uint16_t a, uint16_t b)
{
	const auto is_nan = [](uint16_t bits) { return (bits & 0x7fff) > 0x7c00; };
	return a == b || (is_nan(a) && is_nan(b));
}

static bool same_byte(uint8_t a, uint8_t b, uint8_t infinity)
{
	const auto is_nan = [=](uint8_t bits) { return (bits & 0x7f) > infinity; };
	return a == b || (is_nan(a) && is_nan(b));
}

int main(int, char **)
{
	const int count = 1 << 16;
	Converted *const out = device_array<Converted>(count);
	convert_all<<<count / 256, 256>>>(out);
	CUDA(cudaGetLastError());
	const std::vector<Converted> result = to_host(out, count);
	for (int i = 0; i < count; i++) {
		const Converted expected = convert(static_cast<uint16_t>(i)), got = result[i];
		if (!same_byte(got.e4m3, expected.e4m3, 0x7e) || !same_byte(got.e5m2, expected.e5m2, 0x7c) ||
		    !same_half(got.from_e4m3, expected.from_e4m3) || !same_half(got.from_e5m2, expected.from_e5m2))
			FAIL("half %04x: e4m3 %02x (%02x), e5m2 %02x (%02x), from them %04x (%04x) and %04x (%04x)", i,
			     got.e4m3, expected.e4m3, got.e5m2, expected.e5m2, got.from_e4m3, expected.from_e4m3,
			     got.from_e5m2, expected.from_e5m2);
	}
	CUDA(cudaFree(out));
	std::printf("ok fp8_conversions of %d values\n", count);
}
