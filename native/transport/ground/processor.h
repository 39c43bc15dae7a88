/* processor.h - whose processor this is, where copies go otherwise on some (docs/performance.md). */
#ifndef FARBUS_TRANSPORT_PROCESSOR_H
#define FARBUS_TRANSPORT_PROCESSOR_H

#include <stdbool.h>

static inline bool processor_is_amd(void)
{
#if defined(__x86_64__)
	return __builtin_cpu_is("amd");
#else
	return false;
#endif
}

#endif
