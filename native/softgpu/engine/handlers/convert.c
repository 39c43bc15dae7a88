/* convert.c - cvt (PTX ISA 9.7.9, "cvt"). */
#include <fenv.h>

#include "../machine/handler.h"

enum { TO_NEAREST, TO_ZERO, TO_DOWN, TO_UP };	/* instruction.x, as decode/convert.c sets it */

static int rounding_mode(int x)
{
	static const int modes[] = { FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD };

	return modes[x & 3];
}

/* ---- integer to integer: 8-bit values live in 16-bit registers ---- */

/* V: the value's type; R: its register's */
#define INTEGER_PAIRS(X, from, FV, FR)                                                         \
	X(u8, u8, u16, from, FV, FR) X(s8, s8, s16, from, FV, FR)                              \
	X(u16, u16, u16, from, FV, FR) X(s16, s16, s16, from, FV, FR)                          \
	X(u32, u32, u32, from, FV, FR) X(s32, s32, s32, from, FV, FR)                          \
	X(u64, u64, u64, from, FV, FR) X(s64, s64, s64, from, FV, FR)
#define ALL_INTEGER_PAIRS(X)                                                                   \
	INTEGER_PAIRS(X, u8, u8, u16) INTEGER_PAIRS(X, s8, s8, u16)                            \
	INTEGER_PAIRS(X, u16, u16, u16) INTEGER_PAIRS(X, s16, s16, u16)                        \
	INTEGER_PAIRS(X, u32, u32, u32) INTEGER_PAIRS(X, s32, s32, u32)                        \
	INTEGER_PAIRS(X, u64, u64, u64) INTEGER_PAIRS(X, s64, s64, u64)
#define DEFINE_INTEGER(to, TV, TR, from, FV, FR)                                               \
	HANDLER(to##_##from)                                                                   \
	{                                                                                      \
		TR *d = REGISTER(TR, i->dst);                                                  \
		const FR *a = REGISTER(FR, i->a);                                              \
		STORE(TR, (TR)(TV)(FV)a[l]);                                                   \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(to##_##from##_sat)                                                             \
	{                                                                                      \
		TR *d = REGISTER(TR, i->dst);                                                  \
		const FR *a = REGISTER(FR, i->a);                                              \
		const s128 high = (TV)-1 < 1 ? (s128)(((u64)1 << (sizeof(TV) * 8 - 1)) - 1)    \
					     : (s128)(~(u64)0 >> (64 - sizeof(TV) * 8));       \
		const s128 low = (TV)-1 < 1 ? -high - 1 : 0;                                   \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			s128 value = (FV)a[l];                                                 \
			value = value > high ? high : value < low ? low : value;               \
			d[l] = (TR)(TV)value;                                                  \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_INTEGER(to, TV, TR, from, FV, FR)                                                 \
	{ "cvt." #to "." #from, NULL, to##_##from, NULL, 0, 0 },                               \
	{ "cvt.sat." #to "." #from, NULL, to##_##from##_sat, NULL, 0, 0 },
ALL_INTEGER_PAIRS(DEFINE_INTEGER)

/* ---- integer to float ---- */

#define KEEP_f16(x) ((f16)(x))
#define KEEP_f32(x) ((f32)(x))
#define KEEP_f64(x) ((f64)(x))
#define INTEGERS_TO(X, to, TR)                                                                 \
	X(to, TR, u8, u8, u16) X(to, TR, s8, s8, u16) X(to, TR, u16, u16, u16)                 \
	X(to, TR, s16, s16, u16) X(to, TR, u32, u32, u32) X(to, TR, s32, s32, u32)             \
	X(to, TR, u64, u64, u64) X(to, TR, s64, s64, u64)
#define DEFINE_FROM_INTEGER(to, TR, from, FV, FR)                                              \
	HANDLER(to##_##from)                                                                   \
	{                                                                                      \
		TR *d = REGISTER(TR, i->dst);                                                  \
		const FR *a = REGISTER(FR, i->a);                                              \
		if (i->x == TO_NEAREST) {                                                      \
			STORE(TR, KEEP_##to((FV)a[l]));                                        \
			NEXT;                                                                  \
		}                                                                              \
		fesetround(rounding_mode(i->x));                                               \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			volatile FV value = (FV)a[l];                                          \
			volatile TR result = KEEP_##to(value);                                 \
			d[l] = result;                                                         \
		}                                                                              \
		fesetround(FE_TONEAREST);                                                      \
		NEXT;                                                                          \
	}
#define FORM_FROM_INTEGER(to, TR, from, FV, FR)                                                \
	{ "cvt." #to "." #from, NULL, to##_##from, NULL, 0, 0 },
INTEGERS_TO(DEFINE_FROM_INTEGER, f32, f32)
INTEGERS_TO(DEFINE_FROM_INTEGER, f64, f64)

/* To f16 and bf16: by f64, which holds 32 bits exactly; 64-bit values are
 * rounded to odd there, so that only the last rounding counts. */
static inline f64 odd_f64(s128 value)
{
	f64 wide = (f64)value;
	u64 bits;

	if ((s128)wide == value)
		return wide;
	memcpy(&bits, &wide, sizeof(bits));
	if (((s128)wide > value) == (value > 0))
		bits--;
	bits |= 1;
	memcpy(&wide, &bits, sizeof(wide));
	return wide;
}

static u16 f16_bits(f16 value)
{
	u16 bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

/* Round the exact f64 `value` to f16 in one of the four modes. */
static u16 round_to_f16(f64 value, int x)
{
	f16 nearest = (f16)value;
	u16 bits = f16_bits(nearest);
	f64 back = (f64)nearest;
	bool is_negative = __builtin_signbit(value);

	if (x == TO_NEAREST || back == value || value != value)
		return bits;
	/* Neighbours in magnitude are neighbours in bits; infinity is above the largest. */
	if (__builtin_fabs(back) > __builtin_fabs(value)) {
		if (x == TO_ZERO || (x == TO_DOWN && !is_negative) || (x == TO_UP && is_negative))
			bits--;
	} else if ((x == TO_DOWN && is_negative) || (x == TO_UP && !is_negative)) {
		bits++;
	}
	return bits;
}

static u16 round_to_bf16(f64 value, int x)
{
	f32 narrow;
	u32 bits;
	bool is_negative = __builtin_signbit(value), exact;
	u16 high;

	if (value != value)
		return 0x7fff;
	/* Towards zero to f32, remembering whether anything was lost. */
	narrow = (f32)value;
	memcpy(&bits, &narrow, sizeof(bits));
	if (!__builtin_isinf(value) && __builtin_fabs((f64)narrow) > __builtin_fabs(value)) {
		bits--;
		memcpy(&narrow, &bits, sizeof(narrow));
	}
	exact = (f64)narrow == value;
	if (x == TO_NEAREST) {
		bits |= !exact;
		memcpy(&narrow, &bits, sizeof(narrow));
		return f32_to_bf16(narrow);
	}
	high = (u16)(bits >> 16);
	exact = exact && !(bits & 0xffff);
	if (!exact && ((x == TO_DOWN && is_negative) || (x == TO_UP && !is_negative)))
		high++;
	return high;
}

#define DEFINE_SHORT_FROM_INTEGER(to, TR, from, FV, FR)                                        \
	HANDLER(to##_##from)                                                                   \
	{                                                                                      \
		u16 *d = REGISTER(u16, i->dst);                                                \
		const FR *a = REGISTER(FR, i->a);                                              \
		FOR_ACTIVE(w->mask, l) d[l] = round_to_##to(odd_f64((s128)(FV)a[l]), i->x);    \
		NEXT;                                                                          \
	}
INTEGERS_TO(DEFINE_SHORT_FROM_INTEGER, f16, f16)
INTEGERS_TO(DEFINE_SHORT_FROM_INTEGER, bf16, u16)

/* ---- float to integer ---- */

static inline f64 round_f64(f64 value, int x)
{
	switch (x) {
	case TO_ZERO:
		return __builtin_trunc(value);
	case TO_DOWN:
		return __builtin_floor(value);
	case TO_UP:
		return __builtin_ceil(value);
	default:
		return __builtin_rint(value);
	}
}

#define LOAD_f16(x) ((f64)(x))
#define LOAD_f32(x) ((f64)(x))
#define LOAD_f64(x) (x)
#define LOAD_bf16(x) ((f64)bf16_to_f32(x))
/* Out of range saturates; NaN is 0, or the largest bit where f64 or a 64-bit
 * integer takes part. */
#define DEFINE_TO_INTEGER(from, FR, to, TV, TR)                                                \
	HANDLER(to##_##from)                                                                   \
	{                                                                                      \
		TR *d = REGISTER(TR, i->dst);                                                  \
		const FR *a = REGISTER(FR, i->a);                                              \
		const bool is_signed = (TV)-1 < 1;                                             \
		const u64 top = (u64)1 << (sizeof(TV) * 8 - 1);                                \
		const TV high = is_signed ? (TV)(top - 1) : (TV)~(u64)0;                       \
		const TV low = is_signed ? (TV)top : 0;                                        \
		const TV nan = sizeof(FR) == 8 || sizeof(TV) == 8 ? (TV)top : 0;               \
		const f64 limit = is_signed ? (f64)top : 2 * (f64)top;                         \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			f64 value = round_f64(LOAD_##from(a[l]), i->x);                        \
			d[l] = (TR)(value != value    ? nan                                    \
				    : value >= limit  ? high                                   \
				    : value <= (f64)low ? low                                  \
							: (TV)value);                          \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_TO_INTEGER(from, FR, to, TV, TR)                                                  \
	{ "cvt." #to "." #from, NULL, to##_##from, NULL, 0, 0 },
#define FROM_FLOAT(X, from, FR)                                                                \
	X(from, FR, u8, u8, u16) X(from, FR, s8, s8, s16) X(from, FR, u16, u16, u16)           \
	X(from, FR, s16, s16, s16) X(from, FR, u32, u32, u32)                                  \
	X(from, FR, u64, u64, u64) X(from, FR, s64, s64, s64)
#define FROM_FLOATS(X)                                                                         \
	FROM_FLOAT(X, f16, f16) FROM_FLOAT(X, f32, f32) FROM_FLOAT(X, f64, f64)                \
	FROM_FLOAT(X, bf16, u16) X(f16, f16, s32, s32, s32) X(f64, f64, s32, s32, s32)         \
	X(bf16, u16, s32, s32, s32)
FROM_FLOATS(DEFINE_TO_INTEGER)

/* The one that programs use all the time, vectorised. */
#define TRUNCATED(value)                                                                       \
	((value) != (value)	     ? 0                                                       \
	 : (value) >= 2147483648.0f  ? INT32_MAX                                               \
	 : (value) <= -2147483648.0f ? INT32_MIN                                               \
				     : (s32)(value))
HANDLER(s32_f32)
{
	s32 *d = REGISTER(s32, i->dst);
	const f32 *a = REGISTER(f32, i->a);

	switch (i->x) {
	case TO_ZERO:
		STORE(s32, TRUNCATED(a[l]));
		break;
	case TO_DOWN:
		STORE(s32, ({ f32 value = __builtin_floorf(a[l]); TRUNCATED(value); }));
		break;
	case TO_UP:
		STORE(s32, ({ f32 value = __builtin_ceilf(a[l]); TRUNCATED(value); }));
		break;
	default:
		STORE(s32, ({ f32 value = __builtin_rintf(a[l]); TRUNCATED(value); }));
		break;
	}
	NEXT;
}

/* ---- float to float ---- */

HANDLER(f64_f32)
{
	f64 *d = REGISTER(f64, i->dst);
	const f32 *a = REGISTER(f32, i->a);

	STORE(f64, (f64)a[l]);
	NEXT;
}

HANDLER(f32_f64)
{
	f32 *d = REGISTER(f32, i->dst);
	const f64 *a = REGISTER(f64, i->a);

	if (i->x == TO_NEAREST) {
		STORE(f32, (f32)a[l]);
		NEXT;
	}
	fesetround(rounding_mode(i->x));
	FOR_ACTIVE(w->mask, l)
	{
		volatile f64 value = a[l];
		volatile f32 result = (f32)value;

		d[l] = result;
	}
	fesetround(FE_TONEAREST);
	NEXT;
}

#define EXACT_ROWS(X)                                                                          \
	X("cvt.f32.f16", f32_f16, f32, f16, (f32)a)                                            \
	X("cvt.f64.f16", f64_f16, f64, f16, (f64)a)                                            \
	X("cvt.f32.bf16", f32_bf16, f32, u16, bf16_to_f32(a))                                  \
	X("cvt.f64.bf16", f64_bf16, f64, u16, (f64)bf16_to_f32(a))                             \
	X("cvt.f16.f16", f16_f16, f16, f16, a)                                                 \
	X("cvt.bf16.bf16", bf16_bf16, u16, u16, a)                                             \
	X("cvt.f32.f32", f32_f32, f32, f32, a)                                                 \
	X("cvt.f64.f64", f64_f64, f64, f64, a)
EXACT_ROWS(DEFINE_UNARY)

#define SHORT_ROWS(X)                                                                          \
	X("cvt.f16.f32", f16_f32, f32, round_to_f16((f64)a[l], i->x))                          \
	X("cvt.f16.f64", f16_f64, f64, round_to_f16(a[l], i->x))                               \
	X("cvt.f16.bf16", f16_bf16, u16, round_to_f16((f64)bf16_to_f32(a[l]), i->x))           \
	X("cvt.bf16.f32", bf16_f32, f32, round_to_bf16((f64)a[l], i->x))                       \
	X("cvt.bf16.f64", bf16_f64, f64, round_to_bf16(a[l], i->x))                            \
	X("cvt.bf16.f16", bf16_f16, f16, round_to_bf16((f64)a[l], i->x))                       \
	X("cvt.integral.f16.f16", integral_f16, f16, round_to_f16(round_f64((f64)a[l], i->x), TO_NEAREST)) \
	X("cvt.integral.bf16.bf16", integral_bf16, u16,                                        \
	  round_to_bf16(round_f64((f64)bf16_to_f32(a[l]), i->x), TO_NEAREST))
#define DEFINE_SHORT(names, id, S, expression)                                                 \
	HANDLER(id)                                                                            \
	{                                                                                      \
		u16 *d = REGISTER(u16, i->dst);                                                \
		const S *a = REGISTER(S, i->a);                                                \
		FOR_ACTIVE(w->mask, l) d[l] = (expression);                                    \
		NEXT;                                                                          \
	}
#define FORM_SHORT(names, id, S, expression) { names, NULL, id, NULL, 0, 0 },
SHORT_ROWS(DEFINE_SHORT)

#define DEFINE_INTEGRAL(T, suffix)                                                             \
	HANDLER(integral_##T)                                                                  \
	{                                                                                      \
		T *d = REGISTER(T, i->dst);                                                    \
		const T *a = REGISTER(T, i->a);                                                \
		switch (i->x) {                                                                \
		case TO_ZERO:                                                                  \
			STORE(T, __builtin_trunc##suffix(a[l]));                               \
			break;                                                                 \
		case TO_DOWN:                                                                  \
			STORE(T, __builtin_floor##suffix(a[l]));                               \
			break;                                                                 \
		case TO_UP:                                                                    \
			STORE(T, __builtin_ceil##suffix(a[l]));                                \
			break;                                                                 \
		default:                                                                       \
			STORE(T, __builtin_rint##suffix(a[l]));                                \
			break;                                                                 \
		}                                                                              \
		NEXT;                                                                          \
	}
DEFINE_INTEGRAL(f32, f)
DEFINE_INTEGRAL(f64, )

/* tf32 keeps 10 bits of the fraction; x: TO_UP stands for .rna */
HANDLER(tf32_f32)
{
	u32 *d = REGISTER(u32, i->dst);
	const u32 *a = REGISTER(u32, i->a);
	u32 nearest = i->x == TO_NEAREST, away = i->x == TO_UP;

	STORE(u32, ({
		u32 bits = a[l], half = (nearest ? 0xfff + (bits >> 13 & 1) : away ? 0x1000 : 0);
		(bits & 0x7fffffff) > 0x7f800000 ? 0x7fffffff
		: (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + half) & ~0x1fffu;
	}));
	NEXT;
}

/* d = {a in the upper half, b in the lower}; x: rounding, y: relu */
#define DEFINE_PACKED(T)                                                                       \
	HANDLER(packed_##T)                                                                    \
	{                                                                                      \
		u32 *d = REGISTER(u32, i->dst);                                                \
		const f32 *a = REGISTER(f32, i->a), *b = REGISTER(f32, i->b);                  \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			f32 high = a[l], low = b[l];                                           \
			if (i->y) {                                                            \
				high = high < 0 ? 0 : high;                                    \
				low = low < 0 ? 0 : low;                                       \
			}                                                                      \
			d[l] = (u32)round_to_##T((f64)high, i->x) << 16 |                      \
			       round_to_##T((f64)low, i->x);                                   \
		}                                                                              \
		NEXT;                                                                          \
	}
DEFINE_PACKED(f16)
DEFINE_PACKED(bf16)

#define FORM_PLAIN(names, id, D, S, expression) { names, NULL, id, NULL, 0, 0 },

static const struct form forms[] = {
	ALL_INTEGER_PAIRS(FORM_INTEGER)
	INTEGERS_TO(FORM_FROM_INTEGER, f16, f16)
	INTEGERS_TO(FORM_FROM_INTEGER, bf16, u16)
	INTEGERS_TO(FORM_FROM_INTEGER, f32, f32)
	INTEGERS_TO(FORM_FROM_INTEGER, f64, f64)
	FROM_FLOATS(FORM_TO_INTEGER)
	{ "cvt.s32.f32", NULL, s32_f32, NULL, 0, 0 },
	{ "cvt.f64.f32", NULL, f64_f32, NULL, 0, 0 },
	{ "cvt.f32.f64", NULL, f32_f64, NULL, 0, 0 },
	{ "cvt.integral.f32.f32", NULL, integral_f32, NULL, 0, 0 },
	{ "cvt.integral.f64.f64", NULL, integral_f64, NULL, 0, 0 },
	{ "cvt.tf32.f32", NULL, tf32_f32, NULL, 0, 0 },
	{ "cvt.f16x2.f32", NULL, packed_f16, NULL, 0, 0 },
	{ "cvt.bf16x2.f32", NULL, packed_bf16, NULL, 0, 0 },
	EXACT_ROWS(FORM_PLAIN)
	SHORT_ROWS(FORM_SHORT)
};

TABLE(forms_convert, forms);
