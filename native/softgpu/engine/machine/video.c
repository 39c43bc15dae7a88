/* video.c - SIMD video instructions: 2 x 16 or 4 x 8 bits (PTX ISA 9.7.19). */
#include "handler.h"

enum operation { VADD, VSUB, VAVRG, VABSDIFF, VMIN, VMAX };

/* instruction.x */
#define QUAD 8
#define SIGNED_D 16
#define SIGNED_A 32
#define SIGNED_B 64
#define SATURATES 128
#define ACCUMULATES 256

static s64 part(u32 value, u32 bits, u32 k, bool is_signed)
{
	u32 raw = value >> bits * k & ((1u << bits) - 1);

	return is_signed ? (s64)((s32)(raw << (32 - bits)) >> (32 - bits)) : (s64)raw;
}

static s64 operate(enum operation operation, s64 a, s64 b)
{
	switch (operation) {
	case VADD: return a + b;
	case VSUB: return a - b;
	/* the sum is rounded away from zero */
	case VAVRG: return (a + b + (a + b >= 0)) >> 1;
	case VABSDIFF: return a > b ? a - b : b - a;
	case VMIN: return a < b ? a : b;
	default: return a > b ? a : b;
	}
}

HANDLER(video)
{
	u32 *d = REGISTER(u32, i->dst);
	const u32 *a = REGISTER(u32, i->a), *b = REGISTER(u32, i->b), *c = REGISTER(u32, i->c);
	u32 bits = i->x & QUAD ? 8 : 16;

	FOR_ACTIVE(w->mask, l)
	{
		u32 packed = 0, total = c[l];

		for (u32 k = 0; k < 32 / bits; k++) {
			s64 result = operate((enum operation)(i->x & 7),
					     part(a[l], bits, k, i->x & SIGNED_A),
					     part(b[l], bits, k, i->x & SIGNED_B));
			s64 high = (1ll << (bits - !!(i->x & SIGNED_D))) - 1;
			s64 low = i->x & SIGNED_D ? -high - 1 : 0;

			if (i->x & SATURATES)
				result = result < low ? low : result > high ? high : result;
			packed |= ((u32)result & ((1u << bits) - 1)) << bits * k;
			total += (u32)result;
		}
		d[l] = i->x & ACCUMULATES ? total : packed;
	}
	return i + 1;
}

#define TYPES(op, code, lanes, tail, flags)                                                    \
	{ op lanes ".u32.u32.u32" tail, "d4 a4 b4 c4", video, NULL, code | (flags), false },   \
	{ op lanes ".s32.u32.u32" tail, "d4 a4 b4 c4", video, NULL,                            \
	  code | (flags) | SIGNED_D, false },                                                  \
	{ op lanes ".u32.s32.s32" tail, "d4 a4 b4 c4", video, NULL,                            \
	  code | (flags) | SIGNED_A | SIGNED_B, false },                                       \
	{ op lanes ".s32.s32.s32" tail, "d4 a4 b4 c4", video, NULL,                            \
	  code | (flags) | SIGNED_D | SIGNED_A | SIGNED_B, false },
#define VARIANTS(op, code, lanes, flags)                                                       \
	TYPES(op, code, lanes, "", flags) TYPES(op, code, lanes, ".sat", (flags) | SATURATES)  \
	TYPES(op, code, lanes, ".add", (flags) | ACCUMULATES)
#define OPERATION(op, code) VARIANTS(op, code, "2", 0) VARIANTS(op, code, "4", QUAD)

static const struct form forms[] = {
	OPERATION("vadd", VADD) OPERATION("vsub", VSUB) OPERATION("vavrg", VAVRG)
	OPERATION("vabsdiff", VABSDIFF) OPERATION("vmin", VMIN) OPERATION("vmax", VMAX)
};

const struct form_table forms_video = { forms, sizeof(forms) / sizeof(forms[0]) };
