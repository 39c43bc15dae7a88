/* matrix_element.h - the elements of matrices as doubles: what matrix.c and warpgroup.c share. */
#ifndef FARBUS_SOFTGPU_MATRIX_ELEMENT_H
#define FARBUS_SOFTGPU_MATRIX_ELEMENT_H

#include "../machine/handler.h"

#include "../machine/matrix_instruction.h"

static inline u32 bytes_of(enum matrix_element element)
{
	static const u8 bytes[] = { 2, 2, 4, 4, 8, 1, 1, 4, 1, 1 };

	return bytes[element];
}

/* Rounded once, by way of f32, which processors convert: what that loses is kept in its last bit. */
static inline f16 f16_of_f64(f64 value)
{
	f32 narrow = (f32)value;
	u32 bits;

	memcpy(&bits, &narrow, sizeof(bits));
	bits -= fabs((f64)narrow) > fabs(value);
	bits |= (f64)narrow != value;
	memcpy(&narrow, &bits, sizeof(narrow));
	return (f16)narrow;
}

/* The compiler calls a function for this; the difference of the exponents' biases is a factor. */
static inline f64 f64_of_f16(u16 bits)
{
	u64 wide = (u64)(bits & 0x7fff) << 42;
	f64 value;

	wide |= (bits & 0x7c00) == 0x7c00 ? 0x7ff0000000000000u : 0;
	memcpy(&value, &wide, sizeof(value));
	value *= 0x1p1008;
	return bits & 0x8000 ? -value : value;
}

static inline f64 read_element(enum matrix_element element, const char *at)
{
	u16 bits;
	u32 word;
	f32 value;
	f64 wide;
	s32 integer;

	switch (element) {
	case ELEMENT_F64:
		memcpy(&wide, at, sizeof(wide));
		return wide;
	case ELEMENT_E4M3:
		/* Half an f16 with another bias, and one NaN but no infinities. */
		bits = *(const u8 *)at;
		value = 0x1p8f * (f32)f64_of_f16((u16)((bits & 0x80) << 8 | (bits & 0x7f) << 7));
		return (bits & 0x7f) == 0x7f ? (f64)NAN : (f64)value;
	case ELEMENT_E5M2:
		return f64_of_f16((u16)(*(const u8 *)at << 8));
	case ELEMENT_F16:
		memcpy(&bits, at, sizeof(bits));
		return f64_of_f16(bits);
	case ELEMENT_BF16:
		memcpy(&bits, at, sizeof(bits));
		return (f64)bf16_to_f32(bits);
	case ELEMENT_TF32:
		/* The hardware looks at the upper 19 bits only. */
		memcpy(&word, at, sizeof(word));
		word &= ~0x1fffu;
		memcpy(&value, &word, sizeof(value));
		return (f64)value;
	case ELEMENT_F32:
		memcpy(&value, at, sizeof(value));
		return (f64)value;
	case ELEMENT_S8:
		return (f64)*(const s8 *)at;
	case ELEMENT_U8:
		return (f64)*(const u8 *)at;
	default:
		memcpy(&integer, at, sizeof(integer));
		return (f64)integer;
	}
}

static inline void write_element(enum matrix_element element, char *at, f64 value, bool saturates)
{
	f16 half;
	f32 narrow;
	s32 integer;

	switch (element) {
	case ELEMENT_F16:
		half = f16_of_f64(value);
		memcpy(at, &half, sizeof(half));
		break;
	case ELEMENT_F64:
		memcpy(at, &value, sizeof(value));
		break;
	case ELEMENT_S32:
		/* Sums of at most 32 products and an s32 are exact in a double. */
		integer = saturates ? (value > INT32_MAX   ? INT32_MAX
				       : value < INT32_MIN ? INT32_MIN
							   : (s32)value)
				    : (s32)(u32)(s64)value;
		memcpy(at, &integer, sizeof(integer));
		break;
	default:
		narrow = (f32)value;
		memcpy(at, &narrow, sizeof(narrow));
		break;
	}
}

#endif
