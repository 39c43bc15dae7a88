/* digest.h - SHA-256 (FIPS 180-4), for names that only who has a secret can make. */
#ifndef FARBUS_WIRE_DIGEST_H
#define FARBUS_WIRE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define WIRE_DIGEST_BYTES 32u
/* Longest message, which is all that is needed: two blocks less their padding. */
#define WIRE_DIGEST_MESSAGE_BYTES 119u

void wire_digest(const void *message, size_t bytes, uint8_t digest[WIRE_DIGEST_BYTES]);

#endif
