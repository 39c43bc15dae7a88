/* narrow.c - conversions from and to floats of 8, 6 and 4 bits. */
#include "narrow.h"

#include "handler.h"

static const struct {
	u8 fraction_bits;
	s8 bias;
	u8 largest;	/* bits of the largest finite value */
	u8 infinity;	/* 0: the format has none */
	u8 nan;		/* 0: the format has none */
	u8 sign;
} formats[] = {
	[NARROW_E4M3] = { 3, 7, 0x7e, 0, 0x7f, 0x80 },
	[NARROW_E5M2] = { 2, 15, 0x7b, 0x7c, 0x7f, 0x80 },
	[NARROW_E2M3] = { 3, 1, 0x1f, 0, 0, 0x20 },
	[NARROW_E3M2] = { 2, 3, 0x1f, 0, 0, 0x20 },
	[NARROW_E2M1] = { 1, 1, 0x07, 0, 0, 0x08 },
};

static f64 decode_magnitude(enum narrow_format format, u8 bits)
{
	u8 fraction_bits = formats[format].fraction_bits;
	int exponent = bits >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);

	if (exponent)
		fraction |= 1 << fraction_bits;
	else
		exponent = 1;
	return ldexp(fraction, exponent - formats[format].bias - fraction_bits);
}

f64 narrow_decode(enum narrow_format format, u8 bits)
{
	u8 magnitude, sign;
	f64 value;

	if (format == NARROW_UE8M0)
		return bits == 0xff ? NAN : ldexp(1, bits - 127);
	sign = bits & formats[format].sign;
	magnitude = bits & (formats[format].sign - 1);
	if (magnitude > formats[format].largest)
		value = formats[format].infinity && magnitude == formats[format].infinity ? INFINITY : NAN;
	else
		value = decode_magnitude(format, magnitude);
	return sign ? -value : value;
}

/* A power of two: the sign is left out. */
static u8 encode_power(f64 value, int flags)
{
	int exponent;
	f64 fraction;

	if (value != value)
		return 0xff;
	value = fabs(value);
	if (value == INFINITY)
		return flags & NARROW_SATFINITE ? 0xfe : 0xff;
	fraction = frexp(value, &exponent);	/* value = fraction * 2^exponent, from 1/2 to 1 */
	if (!(flags & NARROW_UP) || fraction == 0.5)
		exponent--;
	if (value == 0 || exponent < -127)
		return 0;
	if (exponent > 127)
		return flags & NARROW_SATFINITE ? 0xfe : 0xff;
	return (u8)(exponent + 127);
}

u8 narrow_encode(enum narrow_format format, f64 value, int flags)
{
	u8 sign, fraction_bits, largest;
	int exponent, least;
	f64 magnitude;

	if (format == NARROW_UE8M0)
		return encode_power(value, flags);
	largest = formats[format].largest;
	if (value != value)
		return formats[format].nan ? formats[format].nan : largest;
	if ((flags & NARROW_RELU) && value < 0)
		value = 0;
	if ((flags & NARROW_RELU) && value == 0)
		return 0;
	sign = signbit(value) ? formats[format].sign : 0;
	fraction_bits = formats[format].fraction_bits;
	least = 1 - formats[format].bias;
	magnitude = fabs(value);
	if (magnitude == 0)
		return sign;
	exponent = magnitude == INFINITY ? 1024 : ilogb(magnitude);
	if (exponent < least)
		exponent = least;
	/* In units of the last place; a carry goes into the exponent by itself. */
	magnitude = magnitude == INFINITY ? magnitude : rint(ldexp(magnitude, fraction_bits - exponent));
	if (ldexp(magnitude, exponent - fraction_bits) > decode_magnitude(format, largest)) {
		if (!(flags & NARROW_SATFINITE))
			return sign | (formats[format].infinity ? formats[format].infinity
								: formats[format].nan);
		return sign | largest;
	}
	return (u8)(sign | (((u32)(exponent - least) << fraction_bits) + (u32)magnitude));
}

/* ---- pairs: a goes into the upper half ---- */

static u16 join(enum narrow_format format, u8 high, u8 low)
{
	return format == NARROW_E2M1 ? (u16)(high << 4 | low) : (u16)(high << 8 | low);
}

static u8 part(enum narrow_format format, u16 pair, int k)
{
	return format == NARROW_E2M1 ? (u8)(pair >> 4 * k & 15) : (u8)(pair >> 8 * k);
}

HANDLER(from_f32)
{
	u16 *d = REGISTER(u16, i->dst);
	const f32 *a = REGISTER(f32, i->a), *b = REGISTER(f32, i->b);

	FOR_ACTIVE(w->mask, l)
	d[l] = join(i->x, narrow_encode(i->x, (f64)a[l], i->y), narrow_encode(i->x, (f64)b[l], i->y));
	return i + 1;
}

static f64 half_of(u32 pair, int k)
{
	u16 bits = (u16)(pair >> 16 * k);
	f16 value;

	memcpy(&value, &bits, sizeof(value));
	return (f64)value;
}

static f64 bf16_of(u32 pair, int k)
{
	return (f64)bf16_to_f32((u16)(pair >> 16 * k));
}

static u16 to_half(f64 value)
{
	f16 half = (f16)value;
	u16 bits;

	if (value != value)
		return 0x7fff;
	memcpy(&bits, &half, sizeof(bits));
	return bits;
}

static u16 to_bf16(f64 value)
{
	return f32_to_bf16((f32)value);
}

#define DEFINE_PAIR(name, READ, WRITE)                                                         \
	HANDLER(from_##name)                                                                   \
	{                                                                                      \
		u16 *d = REGISTER(u16, i->dst);                                                \
		const u32 *a = REGISTER(u32, i->a);                                            \
		FOR_ACTIVE(w->mask, l)                                                         \
		d[l] = join(i->x, narrow_encode(i->x, READ(a[l], 1), i->y),                    \
			    narrow_encode(i->x, READ(a[l], 0), i->y));                         \
		return i + 1;                                                                  \
	}                                                                                      \
	HANDLER(to_##name)                                                                     \
	{                                                                                      \
		u32 *d = REGISTER(u32, i->dst);                                                \
		const u16 *a = REGISTER(u16, i->a);                                            \
		FOR_ACTIVE(w->mask, l)                                                         \
		{                                                                              \
			f64 high = narrow_decode(i->x, part(i->x, a[l], 1));                   \
			f64 low = narrow_decode(i->x, part(i->x, a[l], 0));                    \
			if (i->y & NARROW_RELU) {                                              \
				high = high < 0 || high == 0 ? 0 : high;                       \
				low = low < 0 || low == 0 ? 0 : low;                           \
			}                                                                      \
			d[l] = (u32)WRITE(high) << 16 | WRITE(low);                            \
		}                                                                              \
		return i + 1;                                                                  \
	}
DEFINE_PAIR(f16x2, half_of, to_half)
DEFINE_PAIR(bf16x2, bf16_of, to_bf16)

#define FORMS_OF(name, format)                                                                 \
	{ "cvt." name ".f32", NULL, from_f32, NULL, format, false },                           \
	{ "cvt." name ".f16x2", NULL, from_f16x2, NULL, format, false },                       \
	{ "cvt." name ".bf16x2", NULL, from_bf16x2, NULL, format, false },                     \
	{ "cvt.f16x2." name, NULL, to_f16x2, NULL, format, false },                            \
	{ "cvt.bf16x2." name, NULL, to_bf16x2, NULL, format, false },

static const struct form forms[] = {
	FORMS_OF("e4m3x2", NARROW_E4M3) FORMS_OF("e5m2x2", NARROW_E5M2)
	FORMS_OF("e2m3x2", NARROW_E2M3) FORMS_OF("e3m2x2", NARROW_E3M2)
	FORMS_OF("e2m1x2", NARROW_E2M1) FORMS_OF("ue8m0x2", NARROW_UE8M0)
};

const struct form_table forms_narrow = { forms, sizeof(forms) / sizeof(forms[0]) };
