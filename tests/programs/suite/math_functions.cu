// Mathematical functions in float and double against the CPU's in higher precision (long double).
// The bounds, in units in the last place, are no smaller than the maximum errors that the CUDA
// C++ Programming Guide states in "Mathematical Functions"; half a unit more covers the rounding
// of a correctly rounded result.
#define PROGRAM "math_functions"
#include "check.h"

#include <cfloat>
#include <cmath>

enum Range { ANY, POSITIVE, UNIT, SMALL };

// X(function, error in ulp for float, for double, range of the arguments)
#define FUNCTIONS(X)            \
	X(exp, 2, 1, SMALL)     \
	X(exp2, 2, 1, SMALL)    \
	X(expm1, 1, 1, SMALL)   \
	X(log, 1, 1, POSITIVE)  \
	X(log2, 1, 1, POSITIVE) \
	X(log10, 2, 1, POSITIVE) \
	X(log1p, 1, 1, POSITIVE) \
	X(sin, 2, 2, SMALL)     \
	X(cos, 2, 2, SMALL)     \
	X(tan, 4, 2, SMALL)     \
	X(asin, 2, 2, UNIT)     \
	X(acos, 2, 2, UNIT)     \
	X(atan, 2, 2, ANY)      \
	X(sinh, 3, 2, SMALL)    \
	X(cosh, 2, 1, SMALL)    \
	X(tanh, 2, 2, SMALL)    \
	X(cbrt, 1, 1, ANY)      \
	X(erf, 2, 2, SMALL)     \
	X(sqrt, 0, 0, POSITIVE) \
	X(floor, 0, 0, ANY)     \
	X(trunc, 0, 0, ANY)     \
	X(rint, 0, 0, ANY)      \
	X(fabs, 0, 0, ANY)

#define COUNT_ONE(...) +1
static const int FUNCTION_COUNT = 0 FUNCTIONS(COUNT_ONE);

template <typename Real> __global__ void compute(const Real *x, int count, Real *out)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	int k = 0;
#define DEVICE_CALL(function, ...) out[k * count + i] = function(x[k * count + i]), k++;
	FUNCTIONS(DEVICE_CALL)
}

template <typename Real> __global__ void compute_two(const Real *x, const Real *y, int count, Real *out)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count) {
		out[i] = pow(x[i], y[i]);
		out[count + i] = atan2(x[i], y[i]);
		out[2 * count + i] = fmod(x[i], y[i]);
		out[3 * count + i] = hypot(x[i], y[i]);
	}
}

template <typename Real> static Real argument(Range range, uint32_t i)
{
	const double unit = static_cast<int>(hash(i)) * 0x1p-31;
	switch (range) {
	case ANY:
		return unit * std::pow(10.0, static_cast<int>(hash(~i) % 13) - 6);
	case POSITIVE:
		return std::fabs(unit) * std::pow(10.0, static_cast<int>(hash(~i) % 13) - 6) + 1e-10;
	case UNIT:
		return unit;
	default:
		return unit * 20;
	}
}

/// Distance of `found` from `exact` in units of the last place of Real.
template <typename Real> static double error_in_ulps(Real found, long double exact)
{
	if (found == exact)
		return 0;
	int exponent;
	std::frexp(exact, &exponent);
	const int digits = sizeof(Real) == 4 ? FLT_MANT_DIG : DBL_MANT_DIG, least = sizeof(Real) == 4 ? FLT_MIN_EXP : DBL_MIN_EXP;
	exponent = exponent < least ? least : exponent;
	return static_cast<double>(std::fabs(found - exact) / std::ldexp(1.0L, exponent - digits));
}

template <typename Real> static double check(int count)
{
	static const char *const names[] = {
#define NAME_OF(function, ...) #function,
		FUNCTIONS(NAME_OF)};
	static const Range ranges[] = {
#define RANGE_OF(function, single, twofold, range) range,
		FUNCTIONS(RANGE_OF)};
	static const int bounds[][2] = {
#define BOUND_OF(function, single, twofold, range) {single, twofold},
		FUNCTIONS(BOUND_OF)};
	static long double (*const references[])(long double) = {
#define REFERENCE_OF(function, ...) [](long double value) -> long double { return std::function(value); },
		FUNCTIONS(REFERENCE_OF)};

	std::vector<Real> x(FUNCTION_COUNT * count), a(count), b(count);
	for (int i = 0; i < FUNCTION_COUNT * count; i++)
		x[i] = argument<Real>(ranges[i / count], i);
	for (int i = 0; i < count; i++) {
		a[i] = argument<Real>(POSITIVE, i + 7);
		b[i] = argument<Real>(UNIT, i + 8) * 4;
	}
	Real *device_x = to_device(x), *device_a = to_device(a), *device_b = to_device(b);
	Real *out = device_array<Real>(x.size()), *out_two = device_array<Real>(4 * count);
	compute<<<(count + 127) / 128, 128>>>(device_x, count, out);
	compute_two<<<(count + 127) / 128, 128>>>(device_a, device_b, count, out_two);
	CUDA(cudaGetLastError());
	const std::vector<Real> found = to_host(out, x.size()), found_two = to_host(out_two, 4 * count);
	double worst = 0;
	for (int i = 0; i < FUNCTION_COUNT * count; i++) {
		const int k = i / count;
		const double error = error_in_ulps(found[i], references[k](x[i]));
		const double bound = bounds[k][sizeof(Real) == 8];
		if (!(error <= bound + 0.5))
			FAIL("%s(%.17g) of %zu bytes: %.17g is %.2f ulp away, %.0f are allowed", names[k],
			     static_cast<double>(x[i]), sizeof(Real), static_cast<double>(found[i]), error, bound);
		worst = error > worst ? error : worst;
	}
	for (int i = 0; i < count; i++) {
		const long double p = a[i], q = b[i];
		const long double exact[] = {std::pow(p, q), std::atan2(p, q), std::fmod(p, q), std::hypot(p, q)};
		const double allowed[] = {sizeof(Real) == 4 ? 4.0 : 2.0, sizeof(Real) == 4 ? 3.0 : 2.0, 0, sizeof(Real) == 4 ? 3.0 : 2.0};
		const char *const two[] = {"pow", "atan2", "fmod", "hypot"};
		for (int k = 0; k < 4; k++) {
			const double error = error_in_ulps(found_two[k * count + i], exact[k]);
			if (!(error <= allowed[k] + 0.5))
				FAIL("%s(%.17g, %.17g) of %zu bytes: %.17g is %.2f ulp away, %.0f are allowed", two[k],
				     static_cast<double>(a[i]), static_cast<double>(b[i]), sizeof(Real),
				     static_cast<double>(found_two[k * count + i]), error, allowed[k]);
		}
	}
	for (Real *array : {device_x, device_a, device_b, out, out_two})
		CUDA(cudaFree(array));
	return worst;
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 2000, 1, 1 << 24);
	const double single = check<float>(count), twofold = check<double>(count);
	std::printf("ok math_functions of %d arguments each, at most %.2f and %.2f ulp away\n", count, single, twofold);
}
