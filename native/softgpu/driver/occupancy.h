/* occupancy.h - how many blocks of a function fit a multiprocessor. */
#ifndef FARBUS_SOFTGPU_DRIVER_OCCUPANCY_H
#define FARBUS_SOFTGPU_DRIVER_OCCUPANCY_H

#include "module.h"

/* Blocks of `threads` threads with `dynamic_shared` bytes that one
 * multiprocessor holds at a time; 0 when not even one fits. */
uint32_t driver_occupancy_blocks(const struct CUfunc_st *function, uint32_t threads,
				 size_t dynamic_shared);

#endif
