/* jit.h - options of the just-in-time compiler that travel as they are.
 *
 * They are plain numbers.  The others are buffers of the process that names them, and a server
 * that gave a driver such an address would let its client write there.
 */
#ifndef FARBUS_WIRE_JIT_H
#define FARBUS_WIRE_JIT_H

#include <stdbool.h>

#include "../generated/cuda_abi.h"

/* Most options of one call. */
#define WIRE_JIT_OPTIONS 64u
/* Most bytes of one of the compiler's logs that are passed on. */
#define WIRE_JIT_LOG_BYTES (64u << 10)

static inline bool wire_jit_option_travels(CUjit_option option)
{
	switch (option) {
	case CU_JIT_MAX_REGISTERS:
	case CU_JIT_OPTIMIZATION_LEVEL:
	case CU_JIT_TARGET_FROM_CUCONTEXT:
	case CU_JIT_TARGET:
	case CU_JIT_FALLBACK_STRATEGY:
	case CU_JIT_GENERATE_DEBUG_INFO:
	case CU_JIT_GENERATE_LINE_INFO:
	case CU_JIT_CACHE_MODE:
		return true;
	default:
		return false;
	}
}

#endif
