/* trace.h - which calls of the driver API a program makes: a line for each, to the file that
 * FARBUS_TRACE names.
 *
 * Every call comes through an entry of generated/client_entries.c, which asks one variable whether
 * there is a trace: without one that is all it costs.  With one a call is a line when it returns,
 * written at once and in one piece, so that lines of all threads and processes stand one below the
 * other and none is lost where the program ends without clean-up (killed while it writes, the last is torn):
 *
 *	1764273395.123456 812 815 cuMemAlloc_v2 called 6.214 CUDA_SUCCESS bytes=4096
 *
 * seconds since 1970 at which it began, process, thread, function, how it was answered (local: without
 * the server; posted: sent without waiting; called: it waited for an answer), microseconds, result.
 * What follows says what the call was about (remoting/spec/details.py), each part with its name:
 *
 *	bytes=4096			of a copy, a fill, an allocation, an image that is loaded
 *	from=pageable to=device		of a copy: array, device, managed, pageable, pinned; or mixed
 *	kernel=_Z3addPii		as cuFuncGetName names it, without blanks, the middle of a long one left out
 *	grid=40x1x1 block=128x1x1
 *
 * It is found out when the call has returned, from its arguments and the shim's own tables: behind arguments that
 * point somewhere it looks where the call has succeeded, which has then been there before.
 */
#ifndef FARBUS_CLIENT_TRACE_H
#define FARBUS_CLIENT_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../generated/cuda_abi.h"

enum client_trace_state { CLIENT_TRACE_UNKNOWN, CLIENT_TRACE_OFF, CLIENT_TRACE_ON };
enum client_trace_how { CLIENT_TRACE_LOCAL, CLIENT_TRACE_POSTED, CLIENT_TRACE_CALLED };

/* A call, on the stack of its entry. */
struct client_trace_call {
	const char *name;
	uint64_t began_ns, took_ns;
	enum client_trace_how how;	/* until it returns, that of the call around this one (a callback may call, too) */
	CUresult result;
	bool sized;			/* bytes is known */
	uint64_t bytes;
	const char *from, *to;		/* of a copy, or NULL */
	const char *kernel;		/* or NULL */
	bool shaped;			/* what follows is known */
	unsigned grid[3], block[3];
};

extern _Atomic int client_trace_state;

static inline bool client_trace_is_off(void)
{
	return __builtin_expect(atomic_load_explicit(&client_trace_state, memory_order_relaxed) ==
				CLIENT_TRACE_OFF, 1);
}

/* When the call begins, when it has returned, and its line, if there is a trace; the call's result. */
void client_trace_begin(struct client_trace_call *call, const char *name);
void client_trace_returned(struct client_trace_call *call, CUresult result);
CUresult client_trace_end(const struct client_trace_call *call);

/* Those of which this thread's call has told since it began. */
struct client_trace_call *client_trace_told(void);

/* ---- how a call is answered ---- */

/* This thread's call is answered so, or in a slower way that was noted before. */
void client_trace_answered(enum client_trace_how how);

static inline void client_trace_note(enum client_trace_how how)
{
	if (!client_trace_is_off())
		client_trace_answered(how);
}

/* What cuInit ends with where FARBUS_TRACE names no file that can be written, or one with something else in it: said
 * already. */
CUresult client_trace_trouble(void);

/* Return what `does` returns, in a line of the trace if there is one, of which `says` says more. */
#define CLIENT_TRACED(name, does, says)                 \
	do {                                            \
		struct client_trace_call traced;        \
							\
		client_trace_begin(&traced, name);      \
		client_trace_returned(&traced, does);   \
		says;                                   \
		return client_trace_end(&traced);       \
	} while (0)

#endif
