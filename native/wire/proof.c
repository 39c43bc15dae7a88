#include "proof.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

static void hello_proof(const struct wire_hello *hello, const uint8_t secret[WIRE_SECRET_BYTES],
			uint8_t proof[WIRE_DIGEST_BYTES])
{
	struct wire_hello said = *hello;

	memset(said.proof, 0, sizeof(said.proof));
	wire_hmac(secret, WIRE_PROOF_LABEL, &said, sizeof(said), proof);
}

int wire_hello_prove(struct wire_hello *hello, const uint8_t secret[WIRE_SECRET_BYTES])
{
	uint8_t proof[WIRE_DIGEST_BYTES];
	ssize_t got;

	do {
		got = getrandom(hello->nonce, sizeof(hello->nonce), 0);
	} while (got < 0 && errno == EINTR);
	if (got != (ssize_t)sizeof(hello->nonce))
		return got < 0 ? -errno : -EIO;
	hello_proof(hello, secret, proof);
	memcpy(hello->proof, proof, sizeof(hello->proof));
	return 0;
}

bool wire_secrets_equal(const uint8_t *a, const uint8_t *b, size_t bytes)
{
	uint8_t difference = 0;

	for (size_t i = 0; i < bytes; i++)
		difference |= a[i] ^ b[i];
	return difference == 0;
}

bool wire_hello_proves(const struct wire_hello *hello, const uint8_t secret[WIRE_SECRET_BYTES])
{
	uint8_t proof[WIRE_DIGEST_BYTES];

	hello_proof(hello, secret, proof);
	return wire_secrets_equal(hello->proof, proof, sizeof(hello->proof));
}

void wire_hello_key(const struct wire_hello *hello, const uint8_t secret[WIRE_SECRET_BYTES],
		    uint8_t key[WIRE_DIGEST_BYTES])
{
	wire_hmac(secret, WIRE_TLS_LABEL, hello, sizeof(*hello), key);
}

void wire_resume_key(const uint8_t secret[WIRE_SECRET_BYTES], uint64_t session,
		     uint8_t key[WIRE_SECRET_BYTES])
{
	uint8_t number[8];

	for (int i = 0; i < 8; i++)
		number[i] = (uint8_t)(session >> 8 * i);
	wire_hmac(secret, WIRE_RESUME_LABEL, number, sizeof(number), key);
}
