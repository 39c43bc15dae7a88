/* advice.h - what a program has said of its managed memory. */
#ifndef FARBUS_SOFTGPU_DRIVER_ADVICE_H
#define FARBUS_SOFTGPU_DRIVER_ADVICE_H

#include "abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DRIVER_ADVICE_HOST (1u << 31)	/* of accessed_by, beside a bit for each device */

struct driver_advice {
	bool read_mostly;
	CUmemLocation preferred, prefetched;	/* type INVALID: none */
	uint32_t accessed_by;
};

/* `what`: an advice, or 0 for a prefetch.  0 or -ENOMEM. */
int driver_advice_say(uintptr_t base, uintptr_t end, unsigned what, const CUmemLocation *location);
/* What is true of the whole range; locations that differ are none. */
struct driver_advice driver_advice_of(uintptr_t base, uintptr_t end);
/* The memory is free: what comes there is other memory. */
void driver_advice_forget(uintptr_t base, size_t size);

#endif
