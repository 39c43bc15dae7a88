/* float.c - f32 and f64 arithmetic and comparisons (PTX ISA 9.7.3, 9.7.6).
 *
 * Round to nearest is the processor's own mode; directed rounding switches it
 * for one instruction.  .ftz flushes subnormal inputs and results to zero of
 * their sign.  The .approx forms are at least as accurate as the hardware's,
 * not bit for bit the same.
 */
#include <fenv.h>

#include "../machine/handler.h"

#define SATURATE(x) ((x) > 0 ? ((x) < 1 ? (x) : 1) : 0)	/* NaN to +0 */

/* minNum and maxNum of IEEE 754-2008, with -0 < +0 */
#define MINIMUM(a, b)                                                                          \
	((a) != (a)   ? (b)                                                                    \
	 : (b) != (b) ? (a)                                                                    \
	 : ((a) < (b) || ((a) == (b) && __builtin_signbit(a))) ? (a) : (b))
#define MAXIMUM(a, b)                                                                          \
	((a) != (a)   ? (b)                                                                    \
	 : (b) != (b) ? (a)                                                                    \
	 : ((a) > (b) || ((a) == (b) && __builtin_signbit(b))) ? (a) : (b))
#define MINIMUM_NAN(a, b) ((a) != (a) || (b) != (b) ? (a) + (b) : MINIMUM(a, b))
#define MAXIMUM_NAN(a, b) ((a) != (a) || (b) != (b) ? (a) + (b) : MAXIMUM(a, b))

#define BINARY_ROWS(X, T)                                                                      \
	X("add." #T, add_##T, T, T, a + b)                                                     \
	X("sub." #T, sub_##T, T, T, a - b)                                                     \
	X("mul." #T, mul_##T, T, T, a * b)                                                     \
	X("min." #T, min_##T, T, T, MINIMUM(a, b))                                             \
	X("max." #T, max_##T, T, T, MAXIMUM(a, b))                                             \
	X("div." #T " div.approx." #T " div.full." #T, div_##T, T, T, a / b)

#define FLUSHED_ROWS(X)                                                                        \
	X("add.ftz.f32", add_ftz, f32, f32, flush_f32(flush_f32(a) + flush_f32(b)))            \
	X("sub.ftz.f32", sub_ftz, f32, f32, flush_f32(flush_f32(a) - flush_f32(b)))            \
	X("mul.ftz.f32", mul_ftz, f32, f32, flush_f32(flush_f32(a) * flush_f32(b)))            \
	X("div.ftz.f32 div.approx.ftz.f32 div.full.ftz.f32", div_ftz, f32, f32,                \
	  flush_f32(flush_f32(a) / flush_f32(b)))                                              \
	X("min.ftz.f32", min_ftz, f32, f32, ({                                                 \
		  f32 x = flush_f32(a), y = flush_f32(b);                                      \
		  MINIMUM(x, y);                                                               \
	  }))                                                                                  \
	X("max.ftz.f32", max_ftz, f32, f32, ({                                                 \
		  f32 x = flush_f32(a), y = flush_f32(b);                                      \
		  MAXIMUM(x, y);                                                               \
	  }))                                                                                  \
	X("min.NaN.f32", min_nan, f32, f32, MINIMUM_NAN(a, b))                                 \
	X("max.NaN.f32", max_nan, f32, f32, MAXIMUM_NAN(a, b))                                 \
	X("min.ftz.NaN.f32", min_ftz_nan, f32, f32, ({                                         \
		  f32 x = flush_f32(a), y = flush_f32(b);                                      \
		  MINIMUM_NAN(x, y);                                                           \
	  }))                                                                                  \
	X("max.ftz.NaN.f32", max_ftz_nan, f32, f32, ({                                         \
		  f32 x = flush_f32(a), y = flush_f32(b);                                      \
		  MAXIMUM_NAN(x, y);                                                           \
	  }))                                                                                  \
	X("copysign.f32", copysign_f32, f32, f32, __builtin_copysignf(b, a))                   \
	X("copysign.f64", copysign_f64, f64, f64, __builtin_copysign(b, a))

#define TERNARY_ROWS(X)                                                                        \
	X("fma.f32 mad.f32", fma_f32, f32, f32, f32, __builtin_fmaf(a, b, c))                  \
	X("fma.f64 mad.f64", fma_f64, f64, f64, f64, __builtin_fma(a, b, c))                   \
	X("fma.ftz.f32 mad.ftz.f32", fma_ftz, f32, f32, f32,                                   \
	  flush_f32(__builtin_fmaf(flush_f32(a), flush_f32(b), flush_f32(c))))

#define UNARY_ROWS(X)                                                                          \
	X("neg.f32", neg_f32, f32, f32, -a)                                                    \
	X("neg.f64", neg_f64, f64, f64, -a)                                                    \
	X("abs.f32", abs_f32, f32, f32, __builtin_fabsf(a))                                    \
	X("abs.f64", abs_f64, f64, f64, __builtin_fabs(a))                                     \
	X("neg.ftz.f32", neg_ftz, f32, f32, -flush_f32(a))                                     \
	X("abs.ftz.f32", abs_ftz, f32, f32, __builtin_fabsf(flush_f32(a)))                     \
	X("mov.f32", mov_f32, f32, f32, a)                                                     \
	X("mov.f64", mov_f64, f64, f64, a)                                                     \
	X("@flush.f32", flush, f32, f32, flush_f32(a))                                         \
	X("@saturate.f32", saturate_f32, f32, f32, SATURATE(a))                                \
	X("@saturate.f64", saturate_f64, f64, f64, SATURATE(a))                                \
	X("@relu.f32", relu_f32, f32, f32, a != a ? a : a > 0 ? a : 0)                         \
	X("sqrt.f32 sqrt.approx.f32", sqrt_f32, f32, f32, __builtin_sqrtf(a))                  \
	X("sqrt.f64", sqrt_f64, f64, f64, __builtin_sqrt(a))                                   \
	X("sqrt.ftz.f32 sqrt.approx.ftz.f32", sqrt_ftz, f32, f32,                              \
	  flush_f32(__builtin_sqrtf(flush_f32(a))))                                            \
	X("rcp.f32 rcp.approx.f32", rcp_f32, f32, f32, 1.0f / a)                               \
	X("rcp.f64", rcp_f64, f64, f64, 1.0 / a)                                               \
	X("rcp.ftz.f32 rcp.approx.ftz.f32", rcp_ftz, f32, f32, flush_f32(1.0f / flush_f32(a))) \
	X("rsqrt.approx.f32", rsqrt_f32, f32, f32, (f32)(1.0 / __builtin_sqrt((f64)a)))        \
	X("rsqrt.approx.f64", rsqrt_f64, f64, f64, 1.0 / __builtin_sqrt(a))                    \
	X("rsqrt.approx.ftz.f32", rsqrt_ftz, f32, f32,                                         \
	  flush_f32((f32)(1.0 / __builtin_sqrt((f64)flush_f32(a)))))

#define FUNCTION_ROWS(X)                                                                       \
	X("sin.approx.f32", sin_f32, f32, f32, sinf(a))                                        \
	X("cos.approx.f32", cos_f32, f32, f32, cosf(a))                                        \
	X("lg2.approx.f32", lg2_f32, f32, f32, log2f(a))                                       \
	X("ex2.approx.f32", ex2_f32, f32, f32, exp2f(a))                                       \
	X("tanh.approx.f32", tanh_f32, f32, f32, tanhf(a))                                     \
	X("sin.approx.ftz.f32", sin_ftz, f32, f32, flush_f32(sinf(flush_f32(a))))              \
	X("cos.approx.ftz.f32", cos_ftz, f32, f32, flush_f32(cosf(flush_f32(a))))              \
	X("lg2.approx.ftz.f32", lg2_ftz, f32, f32, flush_f32(log2f(flush_f32(a))))             \
	X("ex2.approx.ftz.f32", ex2_ftz, f32, f32, flush_f32(exp2f(flush_f32(a))))             \
	X("rcp.approx.ftz.f64", rcp_approx_f64, f64, f64, upper_half(1.0 / flush_f64(a)))      \
	X("rsqrt.approx.ftz.f64", rsqrt_approx_f64, f64, f64, upper_half(1.0 / sqrt(flush_f64(a))))

static inline f64 flush_f64(f64 value)
{
	return __builtin_fabs(value) < 0x1p-1022 ? __builtin_copysign(0.0, value) : value;
}

/* The f64 approximations work on the upper 32 bits; the lower ones are zero. */
static inline f64 upper_half(f64 value)
{
	u64 bits;

	if (value != value || isinf(value))
		return value;
	memcpy(&bits, &value, sizeof(bits));
	bits &= 0xffffffff00000000ull;
	memcpy(&value, &bits, sizeof(value));
	return flush_f64(value);
}

BINARY_ROWS(DEFINE_BINARY, f32)
BINARY_ROWS(DEFINE_BINARY, f64)
FLUSHED_ROWS(DEFINE_BINARY)
TERNARY_ROWS(DEFINE_TERNARY)
UNARY_ROWS(DEFINE_UNARY)
FUNCTION_ROWS(DEFINE_UNARY_SCALAR)

/* ---- directed rounding ---- */

enum { TOWARDS_ZERO = FE_TOWARDZERO, DOWN = FE_DOWNWARD, UP = FE_UPWARD };

/* volatile: the compiler must not move the operation across fesetround. */
#define DEFINE_DIRECTED(op, T, operands, ftz, expression)                                      \
	HANDLER(op##_##T##_directed)                                                           \
	{                                                                                      \
		T *d = REGISTER(T, i->dst);                                                    \
		const T *a_ = REGISTER(T, i->a);                                               \
		const T *b_ = REGISTER(T, i->b >= 0 ? i->b : i->a);                            \
		const T *c_ = REGISTER(T, i->c >= 0 ? i->c : i->a);                            \
		fesetround(i->x);                                                              \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			volatile T a = a_[l], b = b_[l], c = c_[l], result;                    \
			(void)a, (void)b, (void)c;                                             \
			result = (expression);                                                 \
			d[l] = result;                                                         \
		}                                                                              \
		fesetround(FE_TONEAREST);                                                      \
		NEXT;                                                                          \
	}
#define FORM_DIRECTED(op, T, operands, ftz, expression)                                        \
	{ #op ".rz" ftz "." #T, operands, op##_##T##_directed, NULL, TOWARDS_ZERO, 0 },        \
	{ #op ".rm" ftz "." #T, operands, op##_##T##_directed, NULL, DOWN, 0 },                \
	{ #op ".rp" ftz "." #T, operands, op##_##T##_directed, NULL, UP, 0 },
#define DIRECTED_ROWS(X)                                                                       \
	X(add, f32, "d4 a4 b4", "", a + b) X(sub, f32, "d4 a4 b4", "", a - b)                  \
	X(mul, f32, "d4 a4 b4", "", a * b) X(div, f32, "d4 a4 b4", "", a / b)                  \
	X(fma, f32, "d4 a4 b4 c4", "", fmaf(a, b, c)) X(mad, f32, "d4 a4 b4 c4", "", fmaf(a, b, c)) \
	X(sqrt, f32, "d4 a4", "", sqrtf(a)) X(rcp, f32, "d4 a4", "", 1.0f / a)                 \
	X(add, f64, "d8 a8 b8", "", a + b) X(sub, f64, "d8 a8 b8", "", a - b)                  \
	X(mul, f64, "d8 a8 b8", "", a * b) X(div, f64, "d8 a8 b8", "", a / b)                  \
	X(fma, f64, "d8 a8 b8 c8", "", fma(a, b, c)) X(mad, f64, "d8 a8 b8 c8", "", fma(a, b, c)) \
	X(sqrt, f64, "d8 a8", "", sqrt(a)) X(rcp, f64, "d8 a8", "", 1.0 / a)
#define DIRECTED_FLUSHED_ROWS(X)                                                               \
	X(add, f32, "d4 a4 b4", ".ftz", flush_f32(flush_f32(a) + flush_f32(b)))                \
	X(sub, f32, "d4 a4 b4", ".ftz", flush_f32(flush_f32(a) - flush_f32(b)))                \
	X(mul, f32, "d4 a4 b4", ".ftz", flush_f32(flush_f32(a) * flush_f32(b)))                \
	X(div, f32, "d4 a4 b4", ".ftz", flush_f32(flush_f32(a) / flush_f32(b)))                \
	X(fma, f32, "d4 a4 b4 c4", ".ftz", flush_f32(fmaf(flush_f32(a), flush_f32(b), flush_f32(c)))) \
	X(sqrt, f32, "d4 a4", ".ftz", flush_f32(sqrtf(flush_f32(a))))                          \
	X(rcp, f32, "d4 a4", ".ftz", flush_f32(1.0f / flush_f32(a)))
DIRECTED_ROWS(DEFINE_DIRECTED)
#define DEFINE_DIRECTED_FLUSHED(op, T, operands, ftz, expression)                              \
	DEFINE_DIRECTED(op##_ftz, T, operands, ftz, expression)
#define FORM_DIRECTED_FLUSHED(op, T, operands, ftz, expression)                                \
	{ #op ".rz" ftz "." #T, operands, op##_ftz_##T##_directed, NULL, TOWARDS_ZERO, 0 },    \
	{ #op ".rm" ftz "." #T, operands, op##_ftz_##T##_directed, NULL, DOWN, 0 },            \
	{ #op ".rp" ftz "." #T, operands, op##_ftz_##T##_directed, NULL, UP, 0 },
DIRECTED_FLUSHED_ROWS(DEFINE_DIRECTED_FLUSHED)

/* ---- comparisons of all types: a bit a lane ---- */

#define COMPARE_INTEGER_ROWS(X, N)                                                             \
	X("setp.eq.b" #N, setp_eq_##N, u##N, a == b)                                           \
	X("setp.ne.b" #N, setp_ne_##N, u##N, a != b)                                           \
	X("setp.lt.s" #N, setp_lt_s##N, s##N, a < b)                                           \
	X("setp.le.s" #N, setp_le_s##N, s##N, a <= b)                                          \
	X("setp.gt.s" #N, setp_gt_s##N, s##N, a > b)                                           \
	X("setp.ge.s" #N, setp_ge_s##N, s##N, a >= b)                                          \
	X("setp.lt.u" #N, setp_lt_u##N, u##N, a < b)                                           \
	X("setp.le.u" #N, setp_le_u##N, u##N, a <= b)                                          \
	X("setp.gt.u" #N, setp_gt_u##N, u##N, a > b)                                           \
	X("setp.ge.u" #N, setp_ge_u##N, u##N, a >= b)
#define COMPARE_FLOAT_ROWS(X, suffix, id, T, F)                                                \
	X("setp.eq." suffix, setp_eq_##id, T, F(a) == F(b))                                    \
	X("setp.ne." suffix, setp_ne_##id, T, (F(a) < F(b)) | (F(a) > F(b)))                   \
	X("setp.lt." suffix, setp_lt_##id, T, F(a) < F(b))                                     \
	X("setp.le." suffix, setp_le_##id, T, F(a) <= F(b))                                    \
	X("setp.gt." suffix, setp_gt_##id, T, F(a) > F(b))                                     \
	X("setp.ge." suffix, setp_ge_##id, T, F(a) >= F(b))                                    \
	X("setp.equ." suffix, setp_equ_##id, T, !((F(a) < F(b)) | (F(a) > F(b))))              \
	X("setp.neu." suffix, setp_neu_##id, T, F(a) != F(b))                                  \
	X("setp.ltu." suffix, setp_ltu_##id, T, !(F(a) >= F(b)))                               \
	X("setp.leu." suffix, setp_leu_##id, T, !(F(a) > F(b)))                                \
	X("setp.gtu." suffix, setp_gtu_##id, T, !(F(a) <= F(b)))                               \
	X("setp.geu." suffix, setp_geu_##id, T, !(F(a) < F(b)))                                \
	X("setp.num." suffix, setp_num_##id, T, (F(a) == F(a)) & (F(b) == F(b)))               \
	X("setp.nan." suffix, setp_nan_##id, T, (F(a) != F(a)) | (F(b) != F(b)))
#define AS_IS(x) (x)
#define DEFINE_COMPARE(names, id, T, expression)                                               \
	HANDLER(id)                                                                            \
	{                                                                                      \
		const T *a_ = REGISTER(T, i->a), *b_ = REGISTER(T, i->b);                      \
		u32 result = 0;                                                                \
		FOR_LANES                                                                      \
		{                                                                              \
			T a = a_[l], b = b_[l];                                                \
			result |= (u32)(expression) << l;                                      \
		}                                                                              \
		SET_PREDICATE(i->dst, result);                                                 \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(id##_immediate)                                                                \
	{                                                                                      \
		const T *a_ = REGISTER(T, i->a);                                               \
		u32 result = 0;                                                                \
		T b;                                                                           \
		memcpy(&b, &i->imm, sizeof(b));                                                \
		FOR_LANES                                                                      \
		{                                                                              \
			T a = a_[l];                                                           \
			result |= (u32)(expression) << l;                                      \
		}                                                                              \
		SET_PREDICATE(i->dst, result);                                                 \
		NEXT;                                                                          \
	}
#define FORM_COMPARE(names, id, T, expression) { names, NULL, id, id##_immediate, 0, 0 },
COMPARE_INTEGER_ROWS(DEFINE_COMPARE, 16)
COMPARE_INTEGER_ROWS(DEFINE_COMPARE, 32)
COMPARE_INTEGER_ROWS(DEFINE_COMPARE, 64)
COMPARE_FLOAT_ROWS(DEFINE_COMPARE, "f32", f32, f32, AS_IS)
COMPARE_FLOAT_ROWS(DEFINE_COMPARE, "f64", f64, f64, AS_IS)
COMPARE_FLOAT_ROWS(DEFINE_COMPARE, "ftz.f32", ftz, f32, flush_f32)

/* ---- testp ---- */

#define TEST_ROWS(X, T)                                                                        \
	X("testp.finite." #T, testp_finite_##T, T, __builtin_isfinite(a))                      \
	X("testp.infinite." #T, testp_infinite_##T, T, __builtin_isinf(a) != 0)                \
	X("testp.number." #T, testp_number_##T, T, a == a)                                     \
	X("testp.notanumber." #T, testp_notanumber_##T, T, a != a)                             \
	X("testp.normal." #T, testp_normal_##T, T, __builtin_isnormal(a))                      \
	X("testp.subnormal." #T, testp_subnormal_##T, T,                                       \
	  a == a && a != 0 && !__builtin_isnormal(a) && !__builtin_isinf(a))
#define DEFINE_TEST(names, id, T, expression)                                                  \
	HANDLER(id)                                                                            \
	{                                                                                      \
		const T *a_ = REGISTER(T, i->a);                                               \
		u32 result = 0;                                                                \
		FOR_LANES                                                                      \
		{                                                                              \
			T a = a_[l];                                                           \
			result |= (u32)(expression) << l;                                      \
		}                                                                              \
		SET_PREDICATE(i->dst, result);                                                 \
		NEXT;                                                                          \
	}
#define FORM_TEST(names, id, T, expression) { names, "dp a" WIDTH_##T, id, NULL, 0, 0 },
TEST_ROWS(DEFINE_TEST, f32)
TEST_ROWS(DEFINE_TEST, f64)

static const struct form forms[] = {
	BINARY_ROWS(FORM_BINARY, f32)
	BINARY_ROWS(FORM_BINARY, f64)
	FLUSHED_ROWS(FORM_BINARY)
	TERNARY_ROWS(FORM_TERNARY)
	UNARY_ROWS(FORM_UNARY)
	FUNCTION_ROWS(FORM_UNARY)
	DIRECTED_ROWS(FORM_DIRECTED)
	DIRECTED_FLUSHED_ROWS(FORM_DIRECTED_FLUSHED)
	COMPARE_INTEGER_ROWS(FORM_COMPARE, 16)
	COMPARE_INTEGER_ROWS(FORM_COMPARE, 32)
	COMPARE_INTEGER_ROWS(FORM_COMPARE, 64)
	COMPARE_FLOAT_ROWS(FORM_COMPARE, "f32", f32, f32, AS_IS)
	COMPARE_FLOAT_ROWS(FORM_COMPARE, "f64", f64, f64, AS_IS)
	COMPARE_FLOAT_ROWS(FORM_COMPARE, "ftz.f32", ftz, f32, flush_f32)
	TEST_ROWS(FORM_TEST, f32)
	TEST_ROWS(FORM_TEST, f64)
};

TABLE(forms_float, forms);
