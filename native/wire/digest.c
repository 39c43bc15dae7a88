#include "digest.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

/* FIPS 180-4, 4.2.2 */
static const uint32_t rounds[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t value, unsigned by)
{
	return value >> by | value << (32 - by);
}

static void block_plain(uint32_t state[8], const uint8_t block[64])
{
	uint32_t words[64], v[8];

	for (int i = 0; i < 16; i++)
		words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
			   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		uint32_t a = words[i - 15], b = words[i - 2];

		words[i] = words[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + words[i - 7] +
			   (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
	}
	memcpy(v, state, sizeof(v));
	for (int i = 0; i < 64; i++) {
		uint32_t one = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
			       ((v[4] & v[5]) ^ (~v[4] & v[6])) + rounds[i] + words[i];
		uint32_t two = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
			       ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

		memmove(v + 1, v, 7 * sizeof(v[0]));
		v[4] += one;
		v[0] = one + two;
	}
	for (int i = 0; i < 8; i++)
		state[i] += v[i];
	/* What is digested may be a secret. */
	explicit_bzero(words, sizeof(words));
}

static void blocks_plain(uint32_t state[8], const uint8_t *at, size_t count)
{
	for (; count; count--, at += 64)
		block_plain(state, at);
}

#if defined(__x86_64__)

/* The same with the processor's instructions for it, ten times as fast: images of
 * tens of megabytes are digested, too.  The state lies as SHA256RNDS2 wants it ("Intel 64 and
 * IA-32 Architectures Software Developer's Manual", volume 2): A B E F and C D G H. */
__attribute__((target("sha,sse4.1"))) static void blocks_by_processor(uint32_t state[8],
								       const uint8_t *at, size_t count)
{
	const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
	__m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
	__m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
	__m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);

	for (; count; count--, at += 64) {
		const __m128i abef_before = abef, cdgh_before = cdgh;
		__m128i words[4];	/* in registers: nothing of a secret stays */

		for (int i = 0; i < 4; i++)
			words[i] = _mm_shuffle_epi8(
				_mm_loadu_si128((const __m128i *)(at + 16 * i)), swap);
#pragma GCC unroll 16
		for (int i = 0; i < 16; i++) {
			__m128i *now = &words[i % 4], last = words[(i + 3) % 4];
			__m128i sum = _mm_add_epi32(
				*now, _mm_loadu_si128((const __m128i *)(rounds + 4 * i)));

			cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
			abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
			if (i >= 12)
				continue;
			*now = _mm_sha256msg1_epu32(*now, words[(i + 1) % 4]);
			*now = _mm_add_epi32(*now, _mm_alignr_epi8(last, words[(i + 2) % 4], 4));
			*now = _mm_sha256msg2_epu32(*now, last);
		}
		abef = _mm_add_epi32(abef, abef_before);
		cdgh = _mm_add_epi32(cdgh, cdgh_before);
	}
	abcd = _mm_shuffle_epi32(abef, 0x1b);
	efgh = _mm_shuffle_epi32(cdgh, 0xb1);
	_mm_storeu_si128((__m128i *)state, _mm_blend_epi16(abcd, efgh, 0xf0));
	_mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(efgh, abcd, 8));
}

/* CPUID leaf 7: EBX bit 29 is SHA; leaf 1: ECX bits 9 and 19 are SSSE3 and SSE4.1. */
static bool processor_digests(void)
{
	unsigned a, b = 0, c, d, c1 = 0;

	return __get_cpuid(1, &a, &b, &c1, &d) && __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1 &&
	       c1 >> 9 & 1 && c1 >> 19 & 1;
}

#elif defined(__aarch64__)

/* The same with the processor's instructions ("Arm Architecture Reference Manual for A-profile", SHA256H and its
 * like): the state lies in order. */
__attribute__((target("+crypto"))) static void blocks_by_processor(uint32_t state[8], const uint8_t *at, size_t count)
{
	uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);

	for (; count; count--, at += 64) {
		const uint32x4_t abcd_before = abcd, efgh_before = efgh;
		uint32x4_t words[4];	/* in registers: nothing of a secret stays */

		for (int i = 0; i < 4; i++)
			words[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(at + 16 * i)));
#pragma GCC unroll 16
		for (int i = 0; i < 16; i++) {
			const uint32x4_t sum = vaddq_u32(words[i % 4], vld1q_u32(rounds + 4 * i)), before = abcd;

			abcd = vsha256hq_u32(abcd, efgh, sum);
			efgh = vsha256h2q_u32(efgh, before, sum);
			if (i < 12)
				words[i % 4] = vsha256su1q_u32(vsha256su0q_u32(words[i % 4], words[(i + 1) % 4]),
							       words[(i + 2) % 4], words[(i + 3) % 4]);
		}
		abcd = vaddq_u32(abcd, abcd_before);
		efgh = vaddq_u32(efgh, efgh_before);
	}
	vst1q_u32(state, abcd);
	vst1q_u32(state + 4, efgh);
}

static bool processor_digests(void)
{
	return getauxval(AT_HWCAP) & HWCAP_SHA2;
}

#else

static bool processor_digests(void)
{
	return false;
}

#define blocks_by_processor blocks_plain
#endif

bool wire_digest_is_fast(void)
{
	static _Atomic int known;	/* 0: not yet, 1: no, 2: yes */

	if (!known)
		known = processor_digests() ? 2 : 1;
	return known == 2;
}

static void blocks(uint32_t state[8], const uint8_t *at, size_t count)
{
	(wire_digest_is_fast() ? blocks_by_processor : blocks_plain)(state, at, count);
}

struct digest {
	uint32_t state[8];
	uint8_t block[64];
	uint64_t bytes;
};

static void digest_start(struct digest *digest)
{
	/* FIPS 180-4, 5.3.3 */
	static const uint32_t first[8] = {
		0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
		0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
	};

	memcpy(digest->state, first, sizeof(first));
	digest->bytes = 0;
}

static void digest_add(struct digest *digest, const void *message, size_t bytes)
{
	const uint8_t *at = message;

	while (bytes) {
		size_t filled = digest->bytes % 64, now = 64 - filled;

		if (!filled && bytes >= 64) {
			now = bytes & ~(size_t)63;
			blocks(digest->state, at, now / 64);
			digest->bytes += now;
			at += now;
			bytes -= now;
			continue;
		}
		if (now > bytes)
			now = bytes;
		memcpy(digest->block + filled, at, now);
		digest->bytes += now;
		at += now;
		bytes -= now;
		if (filled + now == 64)
			blocks(digest->state, digest->block, 1);
	}
}

/* What is left of the message, and of a key in it, does not stay in memory. */
static void digest_end(struct digest *digest, uint8_t result[WIRE_DIGEST_BYTES])
{
	static const uint8_t padding[64] = { 0x80 };
	uint64_t bits = digest->bytes * 8;
	uint8_t length[8];

	for (int i = 0; i < 8; i++)
		length[i] = (uint8_t)(bits >> (56 - 8 * i));
	digest_add(digest, padding, 1 + (119 - digest->bytes % 64) % 64);
	digest_add(digest, length, sizeof(length));
	for (int i = 0; i < 32; i++)
		result[i] = (uint8_t)(digest->state[i / 4] >> (24 - 8 * (i % 4)));
	explicit_bzero(digest, sizeof(*digest));
}

void wire_digest(const void *message, size_t bytes, uint8_t digest[WIRE_DIGEST_BYTES])
{
	struct digest state;

	digest_start(&state);
	digest_add(&state, message, bytes);
	digest_end(&state, digest);
}

void wire_hmac(const uint8_t key[WIRE_DIGEST_BYTES], const char *label, const void *message,
	       size_t bytes, uint8_t digest[WIRE_DIGEST_BYTES])
{
	uint8_t pad[64];
	struct digest state;

	for (size_t i = 0; i < sizeof(pad); i++)
		pad[i] = (i < WIRE_DIGEST_BYTES ? key[i] : 0) ^ 0x36;
	digest_start(&state);
	digest_add(&state, pad, sizeof(pad));
	digest_add(&state, label, strlen(label));
	digest_add(&state, message, bytes);
	digest_end(&state, digest);
	for (size_t i = 0; i < sizeof(pad); i++)
		pad[i] ^= 0x36 ^ 0x5c;
	digest_start(&state);
	digest_add(&state, pad, sizeof(pad));
	digest_add(&state, digest, WIRE_DIGEST_BYTES);
	digest_end(&state, digest);
	explicit_bzero(pad, sizeof(pad));
}
