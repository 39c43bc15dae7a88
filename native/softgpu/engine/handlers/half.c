/* half.c - f16, bf16 and their pairs (PTX ISA 9.7.4).
 *
 * Sums and products are computed in f32, which has more than twice their bits
 * and two: the second rounding changes nothing.  A fused multiply-add is
 * computed in f64, rounded to odd, and then rounded once to the short format.
 */
#include "../machine/handler.h"

static inline bool is_negative(f32 value)
{
	return __builtin_signbit(value);
}

static inline f32 minimum(f32 a, f32 b)
{
	if (a != a)
		return b;
	if (b != b)
		return a;
	return a < b || (a == b && is_negative(a)) ? a : b;
}

static inline f32 maximum(f32 a, f32 b)
{
	if (a != a)
		return b;
	if (b != b)
		return a;
	return a > b || (a == b && is_negative(b)) ? a : b;
}

static inline f32 minimum_nan(f32 a, f32 b)
{
	return a != a || b != b ? __builtin_nanf("") : minimum(a, b);
}

static inline f32 maximum_nan(f32 a, f32 b)
{
	return a != a || b != b ? __builtin_nanf("") : maximum(a, b);
}

static inline f32 saturate(f32 a)
{
	return a > 0 ? (a < 1 ? a : 1) : 0;
}

static inline f32 relu(f32 a)
{
	return a != a ? __builtin_nanf("") : a > 0 ? a : 0;
}

/* f64 to bf16 with one rounding: to f32 by rounding to odd first. */
static inline u16 f64_to_bf16(f64 value)
{
	f32 narrow = (f32)value;
	u32 bits;

	if (value == value && (f64)narrow != value) {
		memcpy(&bits, &narrow, sizeof(bits));
		/* narrow is a neighbour of value: step back if it lies beyond, then make it odd */
		if (__builtin_isinf(narrow))
			return f32_to_bf16(narrow);
		if (__builtin_fabs((f64)narrow) > __builtin_fabs(value))
			bits--;
		bits |= 1;
		memcpy(&narrow, &bits, sizeof(narrow));
	}
	return f32_to_bf16(narrow);
}

/* TwoSum: the f64 sum of a product and an addend, rounded to odd, so that the
 * final rounding to a short format is the only one that counts. */
static inline f64 fused_odd(f64 a, f64 b, f64 c)
{
	f64 product = a * b, sum = product + c;
	f64 part = sum - product, error = (product - (sum - part)) + (c - part);
	u64 bits;

	if (error != 0 && error == error && !__builtin_isinf(sum)) {
		memcpy(&bits, &sum, sizeof(bits));
		if (!(bits & 1))
			bits += ((error > 0) == (sum > 0)) ? 1 : (u64)-1;
		memcpy(&sum, &bits, sizeof(sum));
	}
	return sum;
}

/* A type of half: its bits, how to widen and how to round. */
#define LOAD_f16(x) ((f32)(x))
#define KEEP_f16(x) ((f16)(x))
#define FUSE_f16(a, b, c) ((f16)fused_odd(a, b, c))
#define BITS_f16 f16
#define LOAD_bf16(x) bf16_to_f32(x)
#define KEEP_bf16(x) f32_to_bf16(x)
#define FUSE_bf16(a, b, c) f64_to_bf16(fused_odd(a, b, c))
#define BITS_bf16 u16

/* X(spelling before the type, name, sources, value of type T from f32 a, b, c) */
#define HALF_ROWS(X, T)                                                                        \
	X("add", "", add, 2, T, KEEP_##T(a + b))                                               \
	X("sub", "", sub, 2, T, KEEP_##T(a - b))                                               \
	X("mul", "", mul, 2, T, KEEP_##T(a * b))                                               \
	X("min", "", min, 2, T, KEEP_##T(minimum(a, b)))                                       \
	X("max", "", max, 2, T, KEEP_##T(maximum(a, b)))                                       \
	X("min", ".NaN", min_nan, 2, T, KEEP_##T(minimum_nan(a, b)))                           \
	X("max", ".NaN", max_nan, 2, T, KEEP_##T(maximum_nan(a, b)))                           \
	X("fma", "", fma, 3, T, FUSE_##T(a, b, c))                                             \
	X("fma", ".relu", fma_relu, 3, T, KEEP_##T(relu(LOAD_##T(FUSE_##T(a, b, c)))))         \
	X("neg", "", neg, 1, T, KEEP_##T(-a))                                                  \
	X("abs", "", abs, 1, T, KEEP_##T(__builtin_fabsf(a)))                                  \
	X("ex2.approx", "", ex2, 1, T, KEEP_##T(exp2f(a)))                                     \
	X("tanh.approx", "", tanh, 1, T, KEEP_##T(tanhf(a)))                                   \
	X("@saturate", "", saturate, 1, T, KEEP_##T(saturate(a)))                              \
	X("@relu", "", relu, 1, T, KEEP_##T(relu(a)))

/* One value in 16 bits, or two side by side in 32: the loop differs only. */
#define DEFINE_HALF_LANES(id, sources, T, per_lane, expression)                                \
	HANDLER(id)                                                                            \
	{                                                                                      \
		BITS_##T *d = REGISTER(BITS_##T, i->dst);                                      \
		const BITS_##T *a_ = REGISTER(BITS_##T, i->a);                                 \
		const BITS_##T *b_ = REGISTER(BITS_##T, sources > 1 ? i->b : i->a);            \
		const BITS_##T *c_ = REGISTER(BITS_##T, sources > 2 ? i->c : i->a);            \
		FOR_ACTIVE(w->mask, l)                                                         \
		for (u32 k = per_lane * l; k < per_lane * (l + 1); k++) {                      \
			f32 a = LOAD_##T(a_[k]), b = LOAD_##T(b_[k]), c = LOAD_##T(c_[k]);     \
			(void)a, (void)b, (void)c;                                             \
			d[k] = (expression);                                                   \
		}                                                                              \
		NEXT;                                                                          \
	}
#define DEFINE_HALF(op, modifier, id, sources, T, expression)                                  \
	DEFINE_HALF_LANES(id##_##T, sources, T, 1, expression)                                 \
	DEFINE_HALF_LANES(id##_##T##x2, sources, T, 2, expression)
#define OPERANDS_1(n) "d" n " a" n
#define OPERANDS_2(n) "d" n " a" n " b" n
#define OPERANDS_3(n) "d" n " a" n " b" n " c" n
#define FORM_HALF(op, modifier, id, sources, T, expression)                                    \
	{ op modifier "." #T " " op ".ftz" modifier "." #T,                                    \
	  OPERANDS_##sources("2"), id##_##T, NULL, 0, 0 },                                     \
	{ op modifier "." #T "x2 " op ".ftz" modifier "." #T "x2",                             \
	  OPERANDS_##sources("4"), id##_##T##x2, NULL, 0, 0 },

HALF_ROWS(DEFINE_HALF, f16)
HALF_ROWS(DEFINE_HALF, bf16)

#define COMPARE_ROWS(X, T)                                                                     \
	X("eq", eq, T, a == b) X("ne", ne, T, (a < b) | (a > b)) X("lt", lt, T, a < b)         \
	X("le", le, T, a <= b) X("gt", gt, T, a > b) X("ge", ge, T, a >= b)                    \
	X("equ", equ, T, !((a < b) | (a > b))) X("neu", neu, T, a != b)                        \
	X("ltu", ltu, T, !(a >= b)) X("leu", leu, T, !(a > b)) X("gtu", gtu, T, !(a <= b))     \
	X("geu", geu, T, !(a < b)) X("num", num, T, (a == a) & (b == b))                       \
	X("nan", nan, T, (a != a) | (b != b))
#define ONE_f16 0x3c00
#define ONE_bf16 0x3f80
/* setp of one value; of two with both predicates; set of two */
#define DEFINE_COMPARE(name, id, T, expression)                                                \
	HANDLER(setp_##id##_##T)                                                               \
	{                                                                                      \
		const BITS_##T *a_ = REGISTER(BITS_##T, i->a), *b_ = REGISTER(BITS_##T, i->b); \
		u32 result = 0;                                                                \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			f32 a = LOAD_##T(a_[l]), b = LOAD_##T(b_[l]);                          \
			result |= (u32)(expression) << l;                                      \
		}                                                                              \
		SET_PREDICATE(i->dst, result);                                                 \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(setp_##id##_##T##x2)                                                           \
	{                                                                                      \
		const BITS_##T *a_ = REGISTER(BITS_##T, i->a), *b_ = REGISTER(BITS_##T, i->b); \
		u32 results[2] = { 0, 0 };                                                     \
		FOR_ACTIVE(w->mask, l)                                                         \
		for (u32 k = 0; k < 2; k++) {                                                  \
			f32 a = LOAD_##T(a_[2 * l + k]), b = LOAD_##T(b_[2 * l + k]);          \
			results[k] |= (u32)(expression) << l;                                  \
		}                                                                              \
		SET_PREDICATE(i->dst, results[0]);                                             \
		if (i->imm >= 0)                                                               \
			SET_PREDICATE(i->imm, results[1]);                                     \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(set_##id##_##T##x2)                                                            \
	{                                                                                      \
		u16 *d = REGISTER(u16, i->dst);                                                \
		const BITS_##T *a_ = REGISTER(BITS_##T, i->a), *b_ = REGISTER(BITS_##T, i->b); \
		FOR_ACTIVE(w->mask, l)                                                         \
		for (u32 k = 2 * l; k < 2 * l + 2; k++) {                                      \
			f32 a = LOAD_##T(a_[k]), b = LOAD_##T(b_[k]);                          \
			d[k] = (expression) ? (u16)i->x : 0;                                   \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_COMPARE(name, id, T, expression)                                                  \
	{ "setp." name "." #T, NULL, setp_##id##_##T, NULL, 0, 0 },                            \
	{ "setp." name "." #T "x2", "dp a4 b4", setp_##id##_##T##x2, NULL, 0, 0 },             \
	{ "set." name "." #T "x2." #T "x2", "d4 a4 b4", set_##id##_##T##x2, NULL, ONE_##T, 0 }, \
	{ "set." name ".u32." #T "x2", "d4 a4 b4", set_##id##_##T##x2, NULL, 0xffff, 0 },
COMPARE_ROWS(DEFINE_COMPARE, f16)
COMPARE_ROWS(DEFINE_COMPARE, bf16)

static const struct form forms[] = {
	HALF_ROWS(FORM_HALF, f16)
	HALF_ROWS(FORM_HALF, bf16)
	COMPARE_ROWS(FORM_COMPARE, f16)
	COMPARE_ROWS(FORM_COMPARE, bf16)
};

TABLE(forms_half, forms);
