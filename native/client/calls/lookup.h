/* lookup.h - what is found in the driver API by name or number (lookup.c). */
#ifndef FARBUS_CLIENT_LOOKUP_H
#define FARBUS_CLIENT_LOOKUP_H

#include "../client.h"

/* The driver API as a table (generated/client_entries.c). */
struct client_entry {
	const char *name;
	const char *symbol;
	void *function;
	int version;
	int thread_version;		/* 0: no per-thread-stream form */
	void *thread_function;
	const char *thread_symbol;
	int number;
	const char *reason;		/* why it is unsupported, or NULL */
};

extern const struct client_entry client_entries[];
extern const size_t client_entry_count;

/* Say once, by name, that a function is not there; that this server does not have it. */
CUresult client_unsupported(int number);
CUresult client_missing(const struct client_session *session, int number);

#endif
