/* clock.h - the monotonic clock, by which all here wait and give up. */
#ifndef FARBUS_TRANSPORT_CLOCK_H
#define FARBUS_TRANSPORT_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t transport_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Milliseconds until then, a part of one as a whole one; 0: it is over. */
static inline int transport_left_ms(uint64_t end_ns)
{
	uint64_t now = transport_now_ns();

	return now < end_ns ? (int)((end_ns - now + 999999u) / 1000000u) : 0;
}

/* Tell the processor that this is a spin loop. */
static inline void transport_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

#endif
