/* trace.h - which calls of the driver API a program makes: a line for each, to the file that
 * FARBUS_TRACE names.
 *
 * Every call comes through an entry of generated/client_entries.c, which asks one variable whether
 * there is a trace: without one that is all it costs.  With one a call is a line when it returns,
 * written at once and in one piece, so that lines of all threads and processes stand one below the
 * other and none is lost where the program ends without clean-up (killed while it writes, the last is torn):
 *
 *	1764273395.123456 812 815 cuMemAlloc_v2 called 6.214 CUDA_SUCCESS
 *
 * seconds since 1970 at which it began, process, thread, function, how it was answered (local: without
 * the server; posted: sent without waiting; called: it waited for an answer), microseconds, result.
 */
#ifndef FARBUS_CLIENT_TRACE_H
#define FARBUS_CLIENT_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../generated/cuda_abi.h"

enum client_trace_state { CLIENT_TRACE_UNKNOWN, CLIENT_TRACE_OFF, CLIENT_TRACE_ON };
enum client_trace_how { CLIENT_TRACE_LOCAL, CLIENT_TRACE_POSTED, CLIENT_TRACE_CALLED };

extern _Atomic int client_trace_state;

static inline bool client_trace_is_off(void)
{
	return __builtin_expect(atomic_load_explicit(&client_trace_state, memory_order_relaxed) ==
				CLIENT_TRACE_OFF, 1);
}

/* When the call begins, for client_trace_end, which returns the call's result. */
uint64_t client_trace_begin(void);
CUresult client_trace_end(uint64_t began, const char *name, CUresult result);

/* This thread's call is answered so, or in a slower way that was noted before. */
void client_trace_answered(enum client_trace_how how);

static inline void client_trace_note(enum client_trace_how how)
{
	if (!client_trace_is_off())
		client_trace_answered(how);
}

/* What cuInit ends with where FARBUS_TRACE names no file that can be written: said already. */
CUresult client_trace_trouble(void);

/* Return what `call` returns, in a line of the trace if there is one. */
#define CLIENT_TRACED(name, call)                                        \
	do {                                                             \
		uint64_t client_trace_began = client_trace_begin();      \
		return client_trace_end(client_trace_began, name, call); \
	} while (0)

#endif
