/* matrix_element.h - the elements of matrices as doubles: what handlers_matrix.c and handlers_warpgroup.c share. */
#ifndef FARBUS_SOFTGPU_MATRIX_ELEMENT_H
#define FARBUS_SOFTGPU_MATRIX_ELEMENT_H

#include "handlers.h"

#include "matrix.h"
#include "narrow.h"

static inline u32 bytes_of(enum matrix_element element)
{
	static const u8 bytes[] = { 2, 2, 4, 4, 8, 1, 1, 4, 1, 1 };

	return bytes[element];
}

static inline f64 read_element(enum matrix_element element, const char *at)
{
	f16 half;
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
		return narrow_decode(NARROW_E4M3, *(const u8 *)at);
	case ELEMENT_E5M2:
		return narrow_decode(NARROW_E5M2, *(const u8 *)at);
	case ELEMENT_F16:
		memcpy(&half, at, sizeof(half));
		return (f64)half;
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
		half = (f16)value;
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
