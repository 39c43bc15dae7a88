/* jit.h - options of the just-in-time compiler, and what it says (jit.c). */
#ifndef FARBUS_CLIENT_JIT_H
#define FARBUS_CLIENT_JIT_H

#include "../client.h"

/* Options of the just-in-time compiler that travel: pairs of option and value. */
#define CLIENT_JIT_OPTIONS 64u

/* Where the program wants what the compiler says; the buffer NULL: nowhere. */
struct client_jit_log {
	char *buffer;
	uint32_t room;
	void **filled;
};

struct client_jit_options {
	uint64_t pairs[CLIENT_JIT_OPTIONS][2];
	uint32_t count;
	uint32_t target;		/* an architecture of CU_JIT_TARGET, or 0 */
	struct client_jit_log info, error;
};

/* What of a program's options travels; logs are said to be empty until they are written. */
void client_jit_collect(struct client_jit_options *out, const CUjit_option *options,
			void *const *values, unsigned count);
/* A log ends with a zero, as far as there is room, and its length is told without that. */
void client_jit_log_write(const struct client_jit_log *log, const void *text, size_t bytes);
/* The architectures (10 * major + minor) of the devices, without doubles: of `only`, or of all
 * (-1), and what the options name; at most WIRE_DEVICES + 1. */
uint32_t client_architectures(int only, const struct client_jit_options *options, uint32_t *out);

#endif
