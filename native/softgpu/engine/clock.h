/* clock.h - the clocks that everything here measures by. */
#ifndef FARBUS_SOFTGPU_CLOCK_H
#define FARBUS_SOFTGPU_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Counts at a constant rate: some GHz on x86, 25 MHz to 1 GHz on arm64. */
static inline uint64_t time_stamp_counter(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	uint64_t count;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
	return count;
#endif
}

#endif
