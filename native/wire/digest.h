/* digest.h - SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it: what is made of a lease's
 * secret, and the names under which images are kept. */
#ifndef FARBUS_WIRE_DIGEST_H
#define FARBUS_WIRE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_DIGEST_BYTES 32u

void wire_digest(const void *message, size_t bytes, uint8_t digest[WIRE_DIGEST_BYTES]);

/* Does the processor have instructions for it?  Without, a digest takes longer than a network. */
bool wire_digest_is_fast(void);

/* HMAC-SHA-256 over `label`, without its NUL, and then the message: a label for every
 * purpose, none the beginning of another, makes a key of its own for each. */
void wire_hmac(const uint8_t key[WIRE_DIGEST_BYTES], const char *label, const void *message,
	       size_t bytes, uint8_t digest[WIRE_DIGEST_BYTES]);

#endif
