/* driver_advice.h - what a program has said of its managed memory. */
#ifndef FARBUS_SOFTGPU_DRIVER_ADVICE_H
#define FARBUS_SOFTGPU_DRIVER_ADVICE_H

#include <stddef.h>
#include <stdint.h>

/* The memory is free: what comes there is other memory. */
void driver_advice_forget(uintptr_t base, size_t size);

#endif
