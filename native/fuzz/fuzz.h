/* fuzz.h - what a fuzzer gives to the driver of all fuzzers (mutate.c). */
#ifndef FARBUS_FUZZ_H
#define FARBUS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Inputs to start from; ends with one of no bytes. */
struct fuzz_seed {
	const void *data;
	size_t bytes;
};
extern const struct fuzz_seed fuzz_seeds[];
/* Words that inputs are made of; ends with NULL. */
extern const char *const fuzz_words[];

/* Try one input.  The data has exactly `bytes` bytes and is the callee's to change.
 * What goes wrong is for the sanitizers, a signal or abort() to tell. */
void fuzz_one(uint8_t *data, size_t bytes);

#endif
