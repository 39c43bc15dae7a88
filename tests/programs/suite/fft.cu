// Fast Fourier transform (Stockham's radix-2 form) in float, one launch a stage.  The twiddle
// factors come from the CPU and the butterflies use only + - *, so the CPU's run of the same
// algorithm agrees bit for bit; that the algorithm is right is checked against the definition in
// double, to 1e-6 of the spectrum's root mean square per stage (rounding grows with the stages).
#define PROGRAM "fft"
#include "check.h"

#include <cmath>
#include <complex>
#include <utility>

/// Butterfly `i` of `size / 2` of the stage whose transforms have `half` pairs.
__host__ __device__ static void butterfly(const float2 *in, float2 *out, const float2 *twiddles, int size, int half,
					  int i)
{
	const int k = i & (half - 1);
	const float2 w = twiddles[k * (size / 2 / half)];
	const float2 a = in[i], b = in[i + size / 2];
	const float re = b.x * w.x - b.y * w.y, im = b.x * w.y + b.y * w.x;
	const int place = ((i - k) << 1) + k;
	out[place] = make_float2(a.x + re, a.y + im);
	out[place + half] = make_float2(a.x - re, a.y - im);
}

__global__ void stage(const float2 *in, float2 *out, const float2 *twiddles, int size, int half)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < size / 2)
		butterfly(in, out, twiddles, size, half, i);
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 8192, 2, 1 << 24);
	if (size & (size - 1))
		FAIL("--size %d: N must be a power of two", size);
	std::vector<float2> signal(size), twiddles(size / 2), next(size);
	for (int i = 0; i < size; i++)
		signal[i] = make_float2(static_cast<int>(hash(i)) * 0x1p-31f, static_cast<int>(hash(~i)) * 0x1p-31f);
	const double turn = -2.0 * std::acos(-1.0) / size;
	for (int i = 0; i < size / 2; i++)
		twiddles[i] = make_float2(std::cos(turn * i), std::sin(turn * i));

	float2 *in = to_device(signal), *out = device_array<float2>(size), *device_twiddles = to_device(twiddles);
	int stages = 0;
	for (int half = 1; half < size; half *= 2, stages++) {
		stage<<<(size / 2 + 127) / 128, 128>>>(in, out, device_twiddles, size, half);
		CUDA(cudaGetLastError());
		std::swap(in, out);
	}
	const std::vector<float2> spectrum = to_host(in, size);

	std::vector<float2> now = signal;
	for (int half = 1; half < size; half *= 2) {
		for (int i = 0; i < size / 2; i++)
			butterfly(now.data(), next.data(), twiddles.data(), size, half, i);
		now.swap(next);
	}
	for (int i = 0; i < size; i++)
		if (spectrum[i].x != now[i].x || spectrum[i].y != now[i].y)
			FAIL("frequency %d: (%.9g, %.9g) instead of (%.9g, %.9g)", i, spectrum[i].x, spectrum[i].y,
			     now[i].x, now[i].y);

	double power = 0;
	for (const float2 &value : signal)
		power += double(value.x) * value.x + double(value.y) * value.y;
	for (int f = 0; f < size; f += size / 16 + 1) {
		std::complex<double> sum = 0;
		for (long i = 0; i < size; i++)
			sum += std::complex<double>(signal[i].x, signal[i].y) * std::polar(1.0, turn * (i * f % size));
		const double error = std::abs(sum - std::complex<double>(spectrum[f].x, spectrum[f].y));
		if (error > 1e-6 * stages * std::sqrt(power))
			FAIL("frequency %d is %g away from the definition", f, error);
	}
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	CUDA(cudaFree(device_twiddles));
	std::printf("ok fft of %d points\n", size);
}
