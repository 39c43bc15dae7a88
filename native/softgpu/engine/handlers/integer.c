/* integer.c - integer arithmetic, bits, shifts (PTX ISA 9.7.1, 9.7.2, 9.7.8). */
#include "../machine/handler.h"

/* ---- arithmetic and logic at all widths ---- */

#define BINARY_ROWS(X, N)                                                                      \
	X("add.u" #N " add.s" #N, add_##N, u##N, u##N, a + b)                                  \
	X("sub.u" #N " sub.s" #N, sub_##N, u##N, u##N, a - b)                                  \
	X("mul.lo.u" #N " mul.lo.s" #N, mul_lo_##N, u##N, u##N, (u64)a * b)                    \
	X("and.b" #N, and_##N, u##N, u##N, a & b)                                              \
	X("or.b" #N, or_##N, u##N, u##N, a | b)                                                \
	X("xor.b" #N, xor_##N, u##N, u##N, a ^ b)                                              \
	X("min.s" #N, min_s##N, s##N, s##N, a < b ? a : b)                                     \
	X("max.s" #N, max_s##N, s##N, s##N, a > b ? a : b)                                     \
	X("min.u" #N, min_u##N, u##N, u##N, a < b ? a : b)                                     \
	X("max.u" #N, max_u##N, u##N, u##N, a > b ? a : b)

#define WIDE_ROWS(X)                                                                           \
	X("mul.wide.s16", mul_wide_s16, s32, s16, (s32)a * b)                                  \
	X("mul.wide.u16", mul_wide_u16, u32, u16, (u32)a * b)                                  \
	X("mul.wide.s32", mul_wide_s32, s64, s32, (s64)a * b)                                  \
	X("mul.wide.u32", mul_wide_u32, u64, u32, (u64)a * b)                                  \
	X("mul.hi.s16", mul_hi_s16, s16, s16, ((s32)a * b) >> 16)                              \
	X("mul.hi.u16", mul_hi_u16, u16, u16, ((u32)a * b) >> 16)                              \
	X("mul.hi.s32", mul_hi_s32, s32, s32, ((s64)a * b) >> 32)                              \
	X("mul.hi.u32", mul_hi_u32, u32, u32, ((u64)a * b) >> 32)                              \
	X("mul24.lo.s32", mul24_lo_s32, s32, s32, (a << 8 >> 8) * (b << 8 >> 8))               \
	X("mul24.lo.u32", mul24_lo_u32, u32, u32, (a & 0xffffff) * (b & 0xffffff))             \
	X("mul24.hi.s32", mul24_hi_s32, s32, s32, ((s64)(a << 8 >> 8) * (b << 8 >> 8)) >> 16)  \
	X("mul24.hi.u32", mul24_hi_u32, u32, u32,                                              \
	  ((u64)(a & 0xffffff) * (b & 0xffffff)) >> 16)                                        \
	X("add.sat.s32", add_sat_s32, s32, s32,                                                \
	  ({ s64 sum = (s64)a + b; sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum; })) \
	X("sub.sat.s32", sub_sat_s32, s32, s32,                                                \
	  ({ s64 sum = (s64)a - b; sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum; }))

/* Division by zero gives all ones on the hardware, the remainder the dividend;
 * neither is promised by PTX, but nothing may trap. */
#define DIVISION_ROWS(X, N)                                                                    \
	X("div.s" #N, div_s##N, s##N, s##N, b == 0 ? -1 : b == -1 ? (s##N)(0 - (u##N)a) : a / b) \
	X("div.u" #N, div_u##N, u##N, u##N, b == 0 ? (u##N)~0ull : a / b)                      \
	X("rem.s" #N, rem_s##N, s##N, s##N, b == 0 ? a : b == -1 ? 0 : a % b)                  \
	X("rem.u" #N, rem_u##N, u##N, u##N, b == 0 ? a : a % b)

#define HIGH_64_ROWS(X)                                                                        \
	X("mul.hi.s64", mul_hi_s64, s64, s64, ((s128)a * b) >> 64)                             \
	X("mul.hi.u64", mul_hi_u64, u64, u64, ((u128)a * b) >> 64)

#define UNARY_ROWS(X, N)                                                                       \
	X("not.b" #N, not_##N, u##N, u##N, ~a)                                                 \
	X("cnot.b" #N, cnot_##N, u##N, u##N, a == 0)                                           \
	X("neg.s" #N, neg_##N, u##N, u##N, 0 - a)                                              \
	X("abs.s" #N, abs_##N, s##N, s##N, a < 0 ? 0 - a : a)                                  \
	X("mov.b" #N " mov.u" #N " mov.s" #N, mov_##N, u##N, u##N, a)

#define TERNARY_ROWS(X, N)                                                                     \
	X("mad.lo.u" #N " mad.lo.s" #N, mad_lo_##N, u##N, u##N, u##N, (u##N)((u64)a * b) + c)  \
	X("sad.u" #N, sad_u##N, u##N, u##N, u##N, c + (a < b ? b - a : a - b))                 \
	X("sad.s" #N, sad_s##N, u##N, s##N, u##N, c + (a < b ? (u##N)b - (u##N)a : (u##N)a - (u##N)b))

#define MAD_ROWS(X)                                                                            \
	X("mad.wide.s16", mad_wide_s16, u32, s16, u32, (u32)((s32)a * b) + c)                  \
	X("mad.wide.u16", mad_wide_u16, u32, u16, u32, (u32)a * b + c)                         \
	X("mad.wide.s32", mad_wide_s32, u64, s32, u64, (u64)((s64)a * b) + c)                  \
	X("mad.wide.u32", mad_wide_u32, u64, u32, u64, (u64)a * b + c)                         \
	X("mad.hi.s16", mad_hi_s16, u16, s16, u16, (u16)(((s32)a * b) >> 16) + c)              \
	X("mad.hi.u16", mad_hi_u16, u16, u16, u16, (u16)(((u32)a * b) >> 16) + c)              \
	X("mad.hi.s32", mad_hi_s32, u32, s32, u32, (u32)(((s64)a * b) >> 32) + c)              \
	X("mad.hi.u32", mad_hi_u32, u32, u32, u32, (u32)(((u64)a * b) >> 32) + c)              \
	X("mad24.lo.s32", mad24_lo_s32, s32, s32, s32, (a << 8 >> 8) * (b << 8 >> 8) + c)      \
	X("mad24.lo.u32", mad24_lo_u32, u32, u32, u32, (a & 0xffffff) * (b & 0xffffff) + c)    \
	X("shf.l.wrap.b32", shf_l_wrap, u32, u32, u32, (((u64)b << 32 | a) << (c & 31)) >> 32) \
	X("shf.r.wrap.b32", shf_r_wrap, u32, u32, u32, ((u64)b << 32 | a) >> (c & 31))         \
	X("shf.l.clamp.b32", shf_l_clamp, u32, u32, u32,                                       \
	  c >= 32 ? a : (((u64)b << 32 | a) << (c & 31)) >> 32)                                \
	X("shf.r.clamp.b32", shf_r_clamp, u32, u32, u32,                                       \
	  c >= 32 ? b : ((u64)b << 32 | a) >> (c & 31))                                        \
	X("prmt.b32", prmt, u32, u32, u32, permute(a, b, c))                                   \
	X("prmt.b32.f4e", prmt_f4e, u32, u32, u32, (u32)(((u64)b << 32 | a) >> (c & 3) * 8))   \
	X("prmt.b32.b4e", prmt_b4e, u32, u32, u32, permute(a, b, backward_4[c & 3]))           \
	X("prmt.b32.rc8", prmt_rc8, u32, u32, u32, ((a >> (c & 3) * 8) & 0xff) * 0x01010101u)  \
	X("prmt.b32.ecl", prmt_ecl, u32, u32, u32, permute(a, b, edge_left[c & 3]))            \
	X("prmt.b32.ecr", prmt_ecr, u32, u32, u32, permute(a, b, edge_right[c & 3]))           \
	X("prmt.b32.rc16", prmt_rc16, u32, u32, u32, ((a >> (c & 1) * 16) & 0xffff) * 0x00010001u)

#define MAD_64_ROWS(X)                                                                         \
	X("mad.hi.s64", mad_hi_s64, u64, s64, u64, (u64)(((s128)a * b) >> 64) + c)             \
	X("mad.hi.u64", mad_hi_u64, u64, u64, u64, (u64)(((u128)a * b) >> 64) + c)             \
	X("mad.hi.sat.s32", mad_hi_sat_s32, s32, s32, s32,                                     \
	  ({ s64 sum = (((s64)a * b) >> 32) + c;                                               \
	     sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum; }))              \
	X("dp4a.s32.s32", dp4a_ss, u32, u32, u32, dot4(a, b, c, true, true))                   \
	X("dp4a.s32.u32", dp4a_su, u32, u32, u32, dot4(a, b, c, true, false))                  \
	X("dp4a.u32.s32", dp4a_us, u32, u32, u32, dot4(a, b, c, false, true))                  \
	X("dp4a.u32.u32", dp4a_uu, u32, u32, u32, dot4(a, b, c, false, false))                 \
	X("dp2a.lo.s32.s32", dp2a_lo_ss, u32, u32, u32, dot2(a, b, c, true, true))             \
	X("dp2a.lo.s32.u32", dp2a_lo_su, u32, u32, u32, dot2(a, b, c, true, false))            \
	X("dp2a.lo.u32.s32", dp2a_lo_us, u32, u32, u32, dot2(a, b, c, false, true))            \
	X("dp2a.lo.u32.u32", dp2a_lo_uu, u32, u32, u32, dot2(a, b, c, false, false))           \
	X("dp2a.hi.s32.s32", dp2a_hi_ss, u32, u32, u32, dot2(a, b >> 16, c, true, true))       \
	X("dp2a.hi.s32.u32", dp2a_hi_su, u32, u32, u32, dot2(a, b >> 16, c, true, false))      \
	X("dp2a.hi.u32.s32", dp2a_hi_us, u32, u32, u32, dot2(a, b >> 16, c, false, true))      \
	X("dp2a.hi.u32.u32", dp2a_hi_uu, u32, u32, u32, dot2(a, b >> 16, c, false, false))

#define BIT_ROWS(X)                                                                            \
	X("popc.b32", popc_32, u32, u32, __builtin_popcount(a))                                \
	X("popc.b64", popc_64, u32, u64, __builtin_popcountll(a))                              \
	X("clz.b32", clz_32, u32, u32, a ? __builtin_clz(a) : 32)                              \
	X("clz.b64", clz_64, u32, u64, a ? __builtin_clzll(a) : 64)                            \
	X("brev.b32", brev_32, u32, u32, reverse_32(a))                                        \
	X("brev.b64", brev_64, u64, u64, (u64)reverse_32((u32)a) << 32 | reverse_32((u32)(a >> 32))) \
	X("bfind.u32", bfind_u32, u32, u32, find_high(a))                                      \
	X("bfind.s32", bfind_s32, u32, s32, find_high(a < 0 ? (u32)~a : (u32)a))               \
	X("bfind.u64", bfind_u64, u32, u64, find_high(a))                                      \
	X("bfind.s64", bfind_s64, u32, s64, find_high(a < 0 ? ~(u64)a : (u64)a))               \
	X("bfind.shiftamt.u32", bfind_shift_u32, u32, u32, find_shift(a, 31))                  \
	X("bfind.shiftamt.s32", bfind_shift_s32, u32, s32, find_shift(a < 0 ? (u32)~a : (u32)a, 31)) \
	X("bfind.shiftamt.u64", bfind_shift_u64, u32, u64, find_shift(a, 63))                  \
	X("bfind.shiftamt.s64", bfind_shift_s64, u32, s64, find_shift(a < 0 ? ~(u64)a : (u64)a, 63))

#define MASK_ROWS(X)                                                                           \
	X("bmsk.clamp.b32", bmsk_clamp, u32, u32, bit_mask(a > 32 ? 32 : a, b > 32 ? 32 : b))  \
	X("bmsk.wrap.b32", bmsk_wrap, u32, u32, bit_mask(a & 31, b & 31))

static const u16 backward_4[4] = { 0x5670, 0x6701, 0x7012, 0x0123 };
static const u16 edge_left[4] = { 0x3210, 0x3211, 0x3222, 0x3333 };
static const u16 edge_right[4] = { 0x0000, 0x1110, 0x2210, 0x3210 };

/* prmt: a selector of four nibbles; bit 3 replicates the byte's sign. */
static inline u32 permute(u32 a, u32 b, u32 selector)
{
	u64 bytes = (u64)b << 32 | a;
	u32 result = 0;

	for (int k = 0; k < 4; k++) {
		u32 nibble = selector >> 4 * k & 15;
		u32 byte = (u32)(bytes >> 8 * (nibble & 7)) & 0xff;

		if (nibble & 8)
			byte = byte & 0x80 ? 0xff : 0;
		result |= byte << 8 * k;
	}
	return result;
}

static inline u32 byte_value(u32 word, int k, bool is_signed)
{
	u8 byte = (u8)(word >> 8 * k);

	return is_signed ? (u32)(s32)(s8)byte : byte;
}

static inline u32 dot4(u32 a, u32 b, u32 c, bool a_signed, bool b_signed)
{
	for (int k = 0; k < 4; k++)
		c += byte_value(a, k, a_signed) * byte_value(b, k, b_signed);
	return c;
}

static inline u32 dot2(u32 a, u32 b, u32 c, bool a_signed, bool b_signed)
{
	for (int k = 0; k < 2; k++) {
		u16 half = (u16)(a >> 16 * k);

		c += (a_signed ? (u32)(s32)(s16)half : half) * byte_value(b, k, b_signed);
	}
	return c;
}

static inline u32 reverse_32(u32 value)
{
	value = (value >> 1 & 0x55555555) | (value & 0x55555555) << 1;
	value = (value >> 2 & 0x33333333) | (value & 0x33333333) << 2;
	value = (value >> 4 & 0x0f0f0f0f) | (value & 0x0f0f0f0f) << 4;
	return __builtin_bswap32(value);
}

static inline u32 find_high(u64 value)
{
	return value ? 63 - (u32)__builtin_clzll(value) : ~0u;
}

static inline u32 find_shift(u64 value, u32 top)
{
	return value ? top - find_high(value) : ~0u;
}

static inline u32 bit_mask(u32 position, u32 length)
{
	u64 ones = length >= 32 ? 0xffffffffu : (1ull << length) - 1;

	return (u32)(ones << position);
}

#define EACH_WIDTH(ROWS, X) ROWS(X, 16) ROWS(X, 32) ROWS(X, 64)

EACH_WIDTH(BINARY_ROWS, DEFINE_BINARY)
WIDE_ROWS(DEFINE_BINARY)
EACH_WIDTH(DIVISION_ROWS, DEFINE_BINARY_SCALAR)
HIGH_64_ROWS(DEFINE_BINARY_SCALAR)
EACH_WIDTH(UNARY_ROWS, DEFINE_UNARY)
EACH_WIDTH(TERNARY_ROWS, DEFINE_TERNARY)
MAD_ROWS(DEFINE_TERNARY)
MAD_64_ROWS(DEFINE_TERNARY_SCALAR)
BIT_ROWS(DEFINE_UNARY)
MASK_ROWS(DEFINE_BINARY_SCALAR)

/* ---- shifts: amounts beyond the width clamp ---- */

#define DEFINE_SHIFTS(N)                                                                       \
	HANDLER(shl_##N)                                                                       \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a = REGISTER(u##N, i->a);                                          \
		const u32 *b = REGISTER(u32, i->b);                                            \
		STORE(u##N, b[l] >= N ? 0 : (u##N)(a[l] << (b[l] & (N - 1))));                 \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(shl_##N##_immediate)                                                           \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a = REGISTER(u##N, i->a);                                          \
		u32 b = (u32)i->imm;                                                           \
		u##N keep = b >= N ? 0 : (u##N)~0ull;                                          \
		b &= N - 1;                                                                    \
		STORE(u##N, (u##N)(a[l] << b) & keep);                                         \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(shr_u##N)                                                                      \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a = REGISTER(u##N, i->a);                                          \
		const u32 *b = REGISTER(u32, i->b);                                            \
		STORE(u##N, b[l] >= N ? 0 : (u##N)(a[l] >> (b[l] & (N - 1))));                 \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(shr_u##N##_immediate)                                                          \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a = REGISTER(u##N, i->a);                                          \
		u32 b = (u32)i->imm;                                                           \
		u##N keep = b >= N ? 0 : (u##N)~0ull;                                          \
		b &= N - 1;                                                                    \
		STORE(u##N, (u##N)(a[l] >> b) & keep);                                         \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(shr_s##N)                                                                      \
	{                                                                                      \
		s##N *d = REGISTER(s##N, i->dst);                                              \
		const s##N *a = REGISTER(s##N, i->a);                                          \
		const u32 *b = REGISTER(u32, i->b);                                            \
		STORE(s##N, (s##N)(a[l] >> (b[l] >= N ? N - 1 : b[l])));                       \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(shr_s##N##_immediate)                                                          \
	{                                                                                      \
		s##N *d = REGISTER(s##N, i->dst);                                              \
		const s##N *a = REGISTER(s##N, i->a);                                          \
		u32 b = (u32)i->imm >= N ? N - 1 : (u32)i->imm;                                \
		STORE(s##N, (s##N)(a[l] >> b));                                                \
		NEXT;                                                                          \
	}
#define FORM_SHIFTS(N)                                                                         \
	{ "shl.b" #N, "d" WIDTH_u##N " a" WIDTH_u##N " k4", shl_##N, shl_##N##_immediate, 0, 0 }, \
	{ "shr.b" #N " shr.u" #N, "d" WIDTH_u##N " a" WIDTH_u##N " k4", shr_u##N,              \
	  shr_u##N##_immediate, 0, 0 },                                                        \
	{ "shr.s" #N, "d" WIDTH_u##N " a" WIDTH_u##N " k4", shr_s##N, shr_s##N##_immediate, 0, 0 },

DEFINE_SHIFTS(16)
DEFINE_SHIFTS(32)
DEFINE_SHIFTS(64)

/* ---- bit fields ---- */

#define DEFINE_BITFIELD(N)                                                                     \
	HANDLER(bfe_u##N)                                                                      \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a = REGISTER(u##N, i->a);                                          \
		const u32 *b = REGISTER(u32, i->b), *c = REGISTER(u32, i->c);                  \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			u32 position = b[l] & 255, length = c[l] & 255;                        \
			u##N field = position >= N ? 0 : a[l] >> position;                     \
			d[l] = length >= N ? field : field & (((u##N)1 << length) - 1);        \
		}                                                                              \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(bfe_s##N)                                                                      \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a = REGISTER(u##N, i->a);                                          \
		const u32 *b = REGISTER(u32, i->b), *c = REGISTER(u32, i->c);                  \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			u32 position = b[l] & 255, length = c[l] & 255;                        \
			u32 last = position + length - 1;                                      \
			u##N sign = length ? a[l] >> (last < N - 1 ? last : N - 1) & 1 : 0;    \
			u##N field = (u##N)((s##N)a[l] >> (position >= N ? N - 1 : position)); \
			u##N keep = length >= N ? (u##N)~0ull : ((u##N)1 << length) - 1;       \
			d[l] = !length ? 0 : sign ? field | (u##N)~keep : field & keep;        \
		}                                                                              \
		NEXT;                                                                          \
	}                                                                                      \
	HANDLER(bfi_##N)                                                                       \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a = REGISTER(u##N, i->a), *b = REGISTER(u##N, i->b);               \
		const u32 *c = REGISTER(u32, i->c), *x = REGISTER(u32, i->x);                  \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			u32 position = c[l] & 255, length = x[l] & 255;                        \
			u##N field = length >= N ? (u##N)~0ull : ((u##N)1 << length) - 1;      \
			field = position >= N ? 0 : field << position;                         \
			d[l] = (b[l] & ~field) |                                               \
			       ((position >= N ? 0 : a[l] << position) & field);               \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_BITFIELD(N)                                                                       \
	{ "bfe.u" #N, "d" WIDTH_u##N " a" WIDTH_u##N " b4 c4", bfe_u##N, NULL, 0, 0 },         \
	{ "bfe.s" #N, "d" WIDTH_u##N " a" WIDTH_u##N " b4 c4", bfe_s##N, NULL, 0, 0 },         \
	{ "bfi.b" #N, "d" WIDTH_u##N " a" WIDTH_u##N " b" WIDTH_u##N " c4 x4", bfi_##N, NULL, 0, 0 },

DEFINE_BITFIELD(32)
DEFINE_BITFIELD(64)

/* lop3: bit k of the table is the result where (a, b, c) spell k */
HANDLER(lop3)
{
	u32 *d = REGISTER(u32, i->dst);
	const u32 *a_ = REGISTER(u32, i->a), *b_ = REGISTER(u32, i->b), *c_ = REGISTER(u32, i->c);
	u32 table = (u32)i->x;
	u32 take[8];

	for (int k = 0; k < 8; k++)
		take[k] = table >> k & 1 ? ~0u : 0;
	STORE(u32, ({
		u32 a = a_[l], b = b_[l], c = c_[l];
		(~a & ((~b & ((~c & take[0]) | (c & take[1]))) | (b & ((~c & take[2]) | (c & take[3]))))) |
		(a & ((~b & ((~c & take[4]) | (c & take[5]))) | (b & ((~c & take[6]) | (c & take[7])))));
	}));
	NEXT;
}

/* ---- extended precision: one condition bit a lane ---- */

#define DEFINE_CARRY(N, name, reads, writes, sum)                                              \
	HANDLER(name##_##N)                                                                    \
	{                                                                                      \
		u##N *d = REGISTER(u##N, i->dst);                                              \
		const u##N *a_ = REGISTER(u##N, i->a), *b_ = REGISTER(u##N, i->b);             \
		const u##N *c_ = REGISTER(u##N, i->c >= 0 ? i->c : i->a);                      \
		u32 carry = w->carry;                                                          \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			u##N a = a_[l], b = b_[l], c = c_[l];                                  \
			u64 in = reads ? w->carry >> l & 1 : 0;                                \
			u128 wide = (sum);                                                     \
			(void)c, (void)in;                                                     \
			d[l] = (u##N)wide;                                                     \
			if (writes)                                                            \
				carry = (carry & ~(1u << l)) | (u32)(wide >> N & 1) << l;      \
		}                                                                              \
		w->carry = carry;                                                              \
		NEXT;                                                                          \
	}
/* A difference is a + ~b + 1, so that the condition bit after it is a carry, that is,
 * set when nothing was borrowed: nvcc's division of 128-bit integers reads it with addc. */
#define DEFINE_CARRIES(N)                                                                      \
	DEFINE_CARRY(N, add_cc, 0, 1, (u128)a + b + in)                                        \
	DEFINE_CARRY(N, addc, 1, 0, (u128)a + b + in)                                          \
	DEFINE_CARRY(N, addc_cc, 1, 1, (u128)a + b + in)                                       \
	DEFINE_CARRY(N, sub_cc, 0, 1, (u128)a + (u##N)~b + 1)                                  \
	DEFINE_CARRY(N, subc, 1, 0, (u128)a + (u##N)~b + in)                                   \
	DEFINE_CARRY(N, subc_cc, 1, 1, (u128)a + (u##N)~b + in)                                \
	DEFINE_CARRY(N, mad_lo_cc, 0, 1, (u128)(u##N)((u128)a * b) + c + in)                   \
	DEFINE_CARRY(N, madc_lo, 1, 0, (u128)(u##N)((u128)a * b) + c + in)                     \
	DEFINE_CARRY(N, madc_lo_cc, 1, 1, (u128)(u##N)((u128)a * b) + c + in)                  \
	DEFINE_CARRY(N, mad_hi_cc, 0, 1, (u128)(u##N)(((u128)a * b) >> N) + c + in)            \
	DEFINE_CARRY(N, madc_hi, 1, 0, (u128)(u##N)(((u128)a * b) >> N) + c + in)              \
	DEFINE_CARRY(N, madc_hi_cc, 1, 1, (u128)(u##N)(((u128)a * b) >> N) + c + in)           \
	DEFINE_CARRY(N, mad_hi_cc_s, 0, 1, (u128)(u##N)(((s128)(s##N)a * (s##N)b) >> N) + c + in) \
	DEFINE_CARRY(N, madc_hi_s, 1, 0, (u128)(u##N)(((s128)(s##N)a * (s##N)b) >> N) + c + in) \
	DEFINE_CARRY(N, madc_hi_cc_s, 1, 1, (u128)(u##N)(((s128)(s##N)a * (s##N)b) >> N) + c + in)
#define FORM_CARRY(N, op, name)                                                                \
	{ op ".u" #N " " op ".s" #N, "d" WIDTH_u##N " a" WIDTH_u##N " b" WIDTH_u##N,           \
	  name##_##N, NULL, 0, 0 },
#define FORM_CARRY_MAD(N, names, name)                                                         \
	{ names, "d" WIDTH_u##N " a" WIDTH_u##N " b" WIDTH_u##N " c" WIDTH_u##N, name##_##N, NULL, 0, 0 },
#define FORM_CARRIES(N)                                                                        \
	FORM_CARRY(N, "add.cc", add_cc) FORM_CARRY(N, "addc", addc)                            \
	FORM_CARRY(N, "addc.cc", addc_cc) FORM_CARRY(N, "sub.cc", sub_cc)                      \
	FORM_CARRY(N, "subc", subc) FORM_CARRY(N, "subc.cc", subc_cc)                          \
	FORM_CARRY_MAD(N, "mad.lo.cc.u" #N " mad.lo.cc.s" #N, mad_lo_cc)                       \
	FORM_CARRY_MAD(N, "madc.lo.u" #N " madc.lo.s" #N, madc_lo)                             \
	FORM_CARRY_MAD(N, "madc.lo.cc.u" #N " madc.lo.cc.s" #N, madc_lo_cc)                    \
	FORM_CARRY_MAD(N, "mad.hi.cc.u" #N, mad_hi_cc)                                         \
	FORM_CARRY_MAD(N, "madc.hi.u" #N, madc_hi)                                             \
	FORM_CARRY_MAD(N, "madc.hi.cc.u" #N, madc_hi_cc)                                       \
	FORM_CARRY_MAD(N, "mad.hi.cc.s" #N, mad_hi_cc_s)                                       \
	FORM_CARRY_MAD(N, "madc.hi.s" #N, madc_hi_s)                                           \
	FORM_CARRY_MAD(N, "madc.hi.cc.s" #N, madc_hi_cc_s)

DEFINE_CARRIES(32)
DEFINE_CARRIES(64)

/* ---- two 16-bit lanes in 32 bits (sm_90) ---- */

#define PAIR_ROWS(X)                                                                           \
	X("add.u16x2 add.s16x2", add_16x2, u16, a + b)                                         \
	X("min.s16x2", min_s16x2, s16, a < b ? a : b)                                          \
	X("max.s16x2", max_s16x2, s16, a > b ? a : b)                                          \
	X("min.u16x2", min_u16x2, u16, a < b ? a : b)                                          \
	X("max.u16x2", max_u16x2, u16, a > b ? a : b)
#define DEFINE_PAIR(names, id, T, expression)                                                  \
	HANDLER(id)                                                                            \
	{                                                                                      \
		T *d = REGISTER(T, i->dst);                                                    \
		const T *a_ = REGISTER(T, i->a), *b_ = REGISTER(T, i->b);                      \
		FOR_ACTIVE(w->mask, l)                                                         \
		for (u32 k = 2 * l; k < 2 * l + 2; k++) {                                      \
			T a = a_[k], b = b_[k];                                                \
			d[k] = (T)(expression);                                                \
		}                                                                              \
		NEXT;                                                                          \
	}
#define FORM_PAIR(names, id, T, expression) { names, "d4 a4 b4", id, NULL, 0, 0 },
PAIR_ROWS(DEFINE_PAIR)

/* fns: the position of the n-th set bit from b, upwards for n > 0, downwards for n < 0 */
static u32 find_set(u32 mask, u32 base, s32 n)
{
	s32 step = n < 0 ? -1 : 1, left = n < 0 ? -n : n;

	if (!n)
		return base < 32 && (mask >> base & 1) ? base : ~0u;
	for (s32 at = (s32)base; at >= 0 && at < 32; at += step)
		if ((mask >> at & 1) && !--left)
			return (u32)at;
	return ~0u;
}

HANDLER(find_nth_set)
{
	u32 *d = REGISTER(u32, i->dst);
	const u32 *a = REGISTER(u32, i->a), *b = REGISTER(u32, i->b);
	const s32 *c = REGISTER(s32, i->c);

	FOR_ACTIVE(w->mask, l) d[l] = find_set(a[l], b[l], c[l]);
	NEXT;
}

static const struct form forms[] = {
	{ "fns.b32", "d4 a4 b4 c4", find_nth_set, NULL, 0, 0 },
	EACH_WIDTH(BINARY_ROWS, FORM_BINARY)
	WIDE_ROWS(FORM_BINARY)
	EACH_WIDTH(DIVISION_ROWS, FORM_BINARY_SCALAR)
	HIGH_64_ROWS(FORM_BINARY_SCALAR)
	EACH_WIDTH(UNARY_ROWS, FORM_UNARY)
	EACH_WIDTH(TERNARY_ROWS, FORM_TERNARY)
	MAD_ROWS(FORM_TERNARY)
	MAD_64_ROWS(FORM_TERNARY)
	BIT_ROWS(FORM_UNARY)
	MASK_ROWS(FORM_BINARY_SCALAR)
	FORM_SHIFTS(16)
	FORM_SHIFTS(32)
	FORM_SHIFTS(64)
	FORM_BITFIELD(32)
	FORM_BITFIELD(64)
	FORM_CARRIES(32)
	FORM_CARRIES(64)
	PAIR_ROWS(FORM_PAIR)
	{ "lop3.b32", "d4 a4 b4 c4 ix", lop3, NULL, 0, 0 },
};

TABLE(forms_integer, forms);
