/* handler.h - what handlers are written with.
 *
 * The files of handlers/ are compiled once for each instruction set level (ISA = v2, v3,
 * v4), those here once.  A handler is a plain loop over 32 lanes that the compiler vectorises;
 * lanes that are switched off keep their old value.
 *
 * A group of handlers is a list macro of rows (spelling, name, types,
 * expression), expanded once to define the handlers and once to list the forms,
 * so that what is executed and what is claimed cannot drift apart.
 */
#ifndef FARBUS_SOFTGPU_HANDLER_H
#define FARBUS_SOFTGPU_HANDLER_H

#include <math.h>
#include <string.h>

#include "state.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef _Float16 f16;
typedef float f32;
typedef double f64;
typedef unsigned __int128 u128;
typedef __int128 s128;

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
/* A name of this level: handlers are static, tables are not. */
#define LEVEL(name) JOIN(JOIN(name, _), ISA)

#define HANDLER(name)                                                                          \
	static const struct instruction *name(struct warp *w, const struct instruction *i)

/* Go to the next handler directly: a jump, which the processor predicts for each
 * handler apart.  Only the optimiser makes it a jump and not a call, and the
 * sanitizers prevent that; then the loop in warp_run goes on. */
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) &&    \
	!defined(ENGINE_COUNTS_INSTRUCTIONS)
#define GO(next) return (next)->run(w, (next))
#else
#define GO(next) return ((void)w, (next))
#endif
#define NEXT GO(i + 1)

#define REGISTER(T, slot) ((T *)__builtin_assume_aligned(w->registers + (slot), 64))
#define PREDICATE(slot) (*(u32 *)(w->registers + (slot)))
#define SET_PREDICATE(slot, value)                                                             \
	do {                                                                                   \
		u32 *predicate_ = (u32 *)(w->registers + (slot));                              \
		*predicate_ = (*predicate_ & ~w->mask) | ((value) & w->mask);                  \
	} while (0)

#define ALL_LANES 0xffffffffu
#define FOR_LANES _Pragma("GCC ivdep") for (int l = 0; l < WARP_LANES; l++)
#define FOR_ACTIVE(mask, l)                                                                    \
	for (u32 rest_ = (mask), l; rest_ && ((l = (u32)__builtin_ctz(rest_)), 1);             \
	     rest_ &= rest_ - 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* At the start of a handler that needs all lanes of the warp together. */
#define WAIT_FOR_WARP                                                                          \
	do {                                                                                   \
		const struct instruction *next_;                                               \
		if ((w->live & ~w->mask) && !warp_sync(w, i, ALL_LANES, &next_))               \
			return next_;                                                          \
	} while (0)

/* d[l] = expression for the active lanes.  gcc 12 crashes on masked loops over
 * 16-bit lanes for x86-64-v4: one by one there. */
#define STORE(T, expression)                                                                   \
	do {                                                                                   \
		u32 mask_ = w->mask;                                                           \
		if (mask_ == ALL_LANES) {                                                      \
			FOR_LANES d[l] = (expression);                                         \
		} else if (sizeof(T) == 2) {                                                   \
			FOR_ACTIVE(mask_, l) d[l] = (expression);                              \
		} else {                                                                       \
			FOR_LANES {                                                            \
				T result_ = (expression);                                      \
				d[l] = (mask_ >> l & 1) ? result_ : d[l];                      \
			}                                                                      \
		}                                                                              \
	} while (0)

/* Widths of types as operand lists spell them. */
#define WIDTH_u16 "2"
#define WIDTH_s16 "2"
#define WIDTH_f16 "2"
#define WIDTH_u32 "4"
#define WIDTH_s32 "4"
#define WIDTH_f32 "4"
#define WIDTH_u64 "8"
#define WIDTH_s64 "8"
#define WIDTH_f64 "8"

/* ---- one, two, three sources ---- */

#define DEFINE_UNARY(names, id, D, S, expression)                                              \
	HANDLER(id)                                                                            \
	{                                                                                      \
		D *d = REGISTER(D, i->dst);                                                    \
		const S *a_ = REGISTER(S, i->a);                                               \
		STORE(D, ({ S a = a_[l]; (D)(expression); }));                                 \
		NEXT;                                                                          \
	}
#define FORM_UNARY(names, id, D, S, expression) { names, "d" WIDTH_##D " a" WIDTH_##S, id, NULL, 0, 0 },

/* What cannot be vectorised, or must not see values of inactive lanes. */
#define DEFINE_UNARY_SCALAR(names, id, D, S, expression)                                       \
	HANDLER(id)                                                                            \
	{                                                                                      \
		D *d = REGISTER(D, i->dst);                                                    \
		const S *a_ = REGISTER(S, i->a);                                               \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			S a = a_[l];                                                           \
			d[l] = (D)(expression);                                                \
		}                                                                              \
		NEXT;                                                                          \
	}

#define DEFINE_BINARY(names, id, D, S, expression)                                             \
	HANDLER(id)                                                                            \
	{                                                                                      \
		D *d = REGISTER(D, i->dst);                                                    \
		const S *a_ = REGISTER(S, i->a), *b_ = REGISTER(S, i->b);                      \
		STORE(D, ({ S a = a_[l], b = b_[l]; (D)(expression); }));                      \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(id##_immediate)                                                                \
	{                                                                                      \
		D *d = REGISTER(D, i->dst);                                                    \
		const S *a_ = REGISTER(S, i->a);                                               \
		S b;                                                                           \
		memcpy(&b, &i->imm, sizeof(b));                                                \
		STORE(D, ({ S a = a_[l]; (D)(expression); }));                                 \
		NEXT;                                                                          \
	}
#define FORM_BINARY(names, id, D, S, expression)                                               \
	{ names, "d" WIDTH_##D " a" WIDTH_##S " k" WIDTH_##S, id, id##_immediate, 0, 0 },

#define DEFINE_BINARY_SCALAR(names, id, D, S, expression)                                      \
	HANDLER(id)                                                                            \
	{                                                                                      \
		D *d = REGISTER(D, i->dst);                                                    \
		const S *a_ = REGISTER(S, i->a), *b_ = REGISTER(S, i->b);                      \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			S a = a_[l], b = b_[l];                                                \
			d[l] = (D)(expression);                                                \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_BINARY_SCALAR(names, id, D, S, expression)                                        \
	{ names, "d" WIDTH_##D " a" WIDTH_##S " b" WIDTH_##S, id, NULL, 0, 0 },

/* The third source may be wider than the first two. */
#define DEFINE_TERNARY(names, id, D, S, C, expression)                                         \
	HANDLER(id)                                                                            \
	{                                                                                      \
		D *d = REGISTER(D, i->dst);                                                    \
		const S *a_ = REGISTER(S, i->a), *b_ = REGISTER(S, i->b);                      \
		const C *c_ = REGISTER(C, i->c);                                               \
		STORE(D, ({ S a = a_[l], b = b_[l]; C c = c_[l]; (void)b; (D)(expression); })); \
		NEXT;                                                                          \
	}
#define FORM_TERNARY(names, id, D, S, C, expression)                                           \
	{ names, "d" WIDTH_##D " a" WIDTH_##S " b" WIDTH_##S " c" WIDTH_##C, id, NULL, 0, 0 },

#define DEFINE_TERNARY_SCALAR(names, id, D, S, C, expression)                                  \
	HANDLER(id)                                                                            \
	{                                                                                      \
		D *d = REGISTER(D, i->dst);                                                    \
		const S *a_ = REGISTER(S, i->a), *b_ = REGISTER(S, i->b);                      \
		const C *c_ = REGISTER(C, i->c);                                               \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			S a = a_[l], b = b_[l];                                                \
			C c = c_[l];                                                           \
			d[l] = (D)(expression);                                                \
		}                                                                              \
		NEXT;                                                                          \
	}

#define TABLE(name, list)                                                                      \
	const struct form_table LEVEL(name) = { list, sizeof(list) / sizeof(list[0]) }

static inline f32 flush_f32(f32 value)
{
	u32 bits;

	memcpy(&bits, &value, sizeof(bits));
	bits = bits & 0x7f800000 ? bits : bits & 0x80000000;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline f32 bf16_to_f32(u16 bits)
{
	u32 wide = (u32)bits << 16;
	f32 value;

	memcpy(&value, &wide, sizeof(value));
	return value;
}

/* Round to nearest even; NaN becomes the canonical one. */
static inline u16 f32_to_bf16(f32 value)
{
	u32 bits;

	memcpy(&bits, &value, sizeof(bits));
	if (value != value)
		return 0x7fff;
	return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Of a number and NaN the number is less, and greater. */
static inline f16 least_f16(f16 a, f16 b)
{
	return a != a || b < a ? b : a;
}

static inline f16 greatest_f16(f16 a, f16 b)
{
	return a != a || b > a ? b : a;
}

static inline u16 least_bf16(u16 a, u16 b)
{
	f32 x = bf16_to_f32(a), y = bf16_to_f32(b);

	return x != x || y < x ? b : a;
}

static inline u16 greatest_bf16(u16 a, u16 b)
{
	f32 x = bf16_to_f32(a), y = bf16_to_f32(b);

	return x != x || y > x ? b : a;
}

#endif
