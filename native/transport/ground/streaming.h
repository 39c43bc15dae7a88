/* streaming.h - copies to memory that another processor reads next.
 *
 * A processor that writes where another one has read first takes each line from it.  On AMD's that is slow: 9 GB/s,
 * or 2 where the two share no cache, while stores past the caches ("non-temporal") make 27 and the other one reads what
 * they wrote at 20 (EPYC, family 25 model 17; docs/performance.md).  Others have not been seen to gain.
 */
#ifndef FARBUS_TRANSPORT_STREAMING_H
#define FARBUS_TRANSPORT_STREAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "processor.h"

/* Less is copied as anything is: it is read at once, and from the cache. */
#define STREAMING_BYTES (16u << 10)

#if defined(__x86_64__)
#include <immintrin.h>

#define STREAMING_LINE 64u

static inline bool streaming_gains(void)
{
	return processor_is_amd() && __builtin_cpu_supports("avx2");
}

/* All of it is written before what the caller writes next. */
__attribute__((target("avx2"))) static inline void streaming_copy_lines(uint8_t *to, const uint8_t *from, size_t bytes)
{
	size_t head = -(uintptr_t)to % STREAMING_LINE;

	memcpy(to, from, head);
	for (to += head, from += head, bytes -= head; bytes >= 2 * STREAMING_LINE;
	     to += 2 * STREAMING_LINE, from += 2 * STREAMING_LINE, bytes -= 2 * STREAMING_LINE) {
		__m256i parts[4];

		for (int i = 0; i < 4; i++)
			parts[i] = _mm256_loadu_si256((const __m256i *)from + i);
		for (int i = 0; i < 4; i++)
			_mm256_stream_si256((__m256i *)to + i, parts[i]);
	}
	memcpy(to, from, bytes);
	/* Stores past the caches are ordered by nothing else. */
	_mm_sfence();
}
#endif

static inline void streaming_copy(void *to, const void *from, size_t bytes)
{
#if defined(__x86_64__)
	if (bytes >= STREAMING_BYTES && streaming_gains()) {
		streaming_copy_lines(to, from, bytes);
		return;
	}
#endif
	memcpy(to, from, bytes);
}

#endif
