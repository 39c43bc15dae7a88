/* proof.h - that a client has the lease's secret, and the key of a session's TLS.
 *
 * The secret never travels.  A hello proves it by an HMAC over all the rest of the
 * hello, a nonce included, so that nobody can change one or make another; a
 * supervisor takes no nonce twice.  The key for TLS is an HMAC over the same hello under
 * another label: peers whose hellos differ by a bit can't finish a handshake.
 */
#ifndef FARBUS_WIRE_PROOF_H
#define FARBUS_WIRE_PROOF_H

#include <stdbool.h>

#include "digest.h"
#include "hello.h"

/* remoting/session.py has the same. */
#define WIRE_PROOF_LABEL "farbus remoting proof 2"
#define WIRE_TLS_LABEL "farbus remoting tls 2"
#define WIRE_RESUME_LABEL "farbus remoting resume 2"

/* Takes the same time wherever they differ: both are read to their ends. */
bool wire_secrets_equal(const uint8_t *a, const uint8_t *b, size_t bytes);

/* Fill in the nonce and the proof; everything else is there.  0 or -errno: no randomness. */
int wire_hello_prove(struct wire_hello *hello, const uint8_t secret[WIRE_SECRET_BYTES]);

/* Takes the same time whatever the proof is. */
bool wire_hello_proves(const struct wire_hello *hello, const uint8_t secret[WIRE_SECRET_BYTES]);

/* What stands in the secret's place in the hellos that a session goes on with: who has it has
 * that session and no other, and the secret need not stay in anybody's memory. */
void wire_resume_key(const uint8_t secret[WIRE_SECRET_BYTES], uint64_t session,
		     uint8_t key[WIRE_SECRET_BYTES]);

void wire_hello_key(const struct wire_hello *hello, const uint8_t secret[WIRE_SECRET_BYTES],
		    uint8_t key[WIRE_DIGEST_BYTES]);

#endif
