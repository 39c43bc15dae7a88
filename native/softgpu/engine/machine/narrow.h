/* narrow.h - floats of 8, 6 and 4 bits (PTX ISA 5.2.3, "alternate floating point formats"). */
#ifndef FARBUS_SOFTGPU_NARROW_H
#define FARBUS_SOFTGPU_NARROW_H

#include <stdint.h>

enum narrow_format {
	NARROW_E4M3, NARROW_E5M2, NARROW_E2M3, NARROW_E3M2, NARROW_E2M1, NARROW_UE8M0,
	NARROW_FORMATS,
};

/* instruction.y of a conversion */
enum narrow_flag { NARROW_RELU = 1, NARROW_SATFINITE = 2, NARROW_UP = 4 };

double narrow_decode(enum narrow_format format, uint8_t bits);
/* To nearest even, too large values as `flags` say; ue8m0 towards zero or up. */
uint8_t narrow_encode(enum narrow_format format, double value, int flags);

#endif
