/* The answer to cudart's integrity check, for interoperability only.
 *
 * Published by ZLUDA, Lupine and smolvm (Apache-2.0/MIT): a MAC (HMAC, RFC 2104,
 * over MD2, RFC 1319, with its block of 16 bytes) over what the driver has told
 * about itself, under the key in ZLUDA's dark_api source.  It proves that the
 * answers of one process are consistent; it protects no work of anybody.
 */
#include "cudart.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* RFC 1319, section 3.2: the digits of pi. */
static const uint8_t md2_table[256] = {
	 41,  46,  67, 201, 162, 216, 124,   1,  61,  54,  84, 161, 236, 240,   6,  19,
	 98, 167,   5, 243, 192, 199, 115, 140, 152, 147,  43, 217, 188,  76, 130, 202,
	 30, 155,  87,  60, 253, 212, 224,  22, 103,  66, 111,  24, 138,  23, 229,  18,
	190,  78, 196, 214, 218, 158, 222,  73, 160, 251, 245, 142, 187,  47, 238, 122,
	169, 104, 121, 145,  21, 178,   7,  63, 148, 194,  16, 137,  11,  34,  95,  33,
	128, 127,  93, 154,  90, 144,  50,  39,  53,  62, 204, 231, 191, 247, 151,   3,
	255,  25,  48, 179,  72, 165, 181, 209, 215,  94, 146,  42, 172,  86, 170, 198,
	 79, 184,  56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116,   4, 241,
	 69, 157, 112,  89, 100, 113, 135,  32, 134,  91, 207, 101, 230,  45, 168,   2,
	 27,  96,  37, 173, 174, 176, 185, 246,  28,  70,  97, 105,  52,  64, 126,  15,
	 85,  71, 163,  35, 221,  81, 175,  58, 195,  92, 249, 206, 186, 197, 234,  38,
	 44,  83,  13, 110, 133,  40, 132,   9, 211, 223, 205, 244,  65, 129,  77,  82,
	106, 220,  55, 200, 108, 193, 171, 250,  36, 225, 123,   8,  12, 189, 177,  74,
	120, 136, 149, 139, 227,  99, 232, 109, 233, 203, 213, 254,  59,   0,  29,  57,
	242, 239, 183,  14, 102,  88, 208, 228, 166, 119, 114, 248, 235, 117,  75,  10,
	 49,  68,  80, 180, 143, 237,  31,  26, 219, 153, 141,  51, 159,  17, 131,  20
};

#define MD2_BLOCK 16

struct md2 {
	uint8_t state[48];
	uint8_t checksum[MD2_BLOCK];
	uint8_t last;
	uint8_t pending[MD2_BLOCK];
	size_t pending_bytes;
};

static void md2_state_block(struct md2 *md2, const uint8_t block[MD2_BLOCK])
{
	uint8_t t = 0;

	for (int i = 0; i < MD2_BLOCK; i++) {
		md2->state[16 + i] = block[i];
		md2->state[32 + i] = block[i] ^ md2->state[i];
	}
	for (int round = 0; round < 18; round++) {
		for (int i = 0; i < 48; i++) {
			md2->state[i] ^= md2_table[t];
			t = md2->state[i];
		}
		t = (uint8_t)(t + round);
	}
}

static void md2_block(struct md2 *md2, const uint8_t block[MD2_BLOCK])
{
	for (int i = 0; i < MD2_BLOCK; i++) {
		md2->checksum[i] ^= md2_table[block[i] ^ md2->last];
		md2->last = md2->checksum[i];
	}
	md2_state_block(md2, block);
}

static void md2_update(struct md2 *md2, const void *data, size_t bytes)
{
	const uint8_t *at = data;

	while (bytes--) {
		md2->pending[md2->pending_bytes++] = *at++;
		if (md2->pending_bytes == MD2_BLOCK) {
			md2_block(md2, md2->pending);
			md2->pending_bytes = 0;
		}
	}
}

static void md2_final(struct md2 *md2, uint8_t digest[MD2_BLOCK])
{
	uint8_t pad = (uint8_t)(MD2_BLOCK - md2->pending_bytes);
	uint8_t checksum[MD2_BLOCK];

	for (uint8_t i = pad; i; i--)
		md2_update(md2, &pad, 1);
	memcpy(checksum, md2->checksum, sizeof(checksum));
	md2_state_block(md2, checksum);
	memcpy(digest, md2->state, MD2_BLOCK);
}

static const uint8_t handshake_key[MD2_BLOCK] = {
	0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
	0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f,
};

/* RFC 2104 with a key of exactly one block: start the inner or outer hash. */
static void hmac_start(struct md2 *md2, uint8_t pad)
{
	uint8_t block[MD2_BLOCK];

	memset(md2, 0, sizeof(*md2));
	for (int i = 0; i < MD2_BLOCK; i++)
		block[i] = handshake_key[i] ^ pad;
	md2_update(md2, block, sizeof(block));
}

static CUresult hash_device(struct md2 *md2, const struct cudart_host *host, int ordinal)
{
	CUuuid uuid;
	int pci[3];
	CUresult result = host->device_identity(ordinal, &uuid, pci);

	if (result != CUDA_SUCCESS)
		return result;
	md2_update(md2, uuid.bytes, sizeof(uuid.bytes));
	for (int i = 0; i < 3; i++) {
		int32_t part = pci[i];

		md2_update(md2, &part, sizeof(part));
	}
	return CUDA_SUCCESS;
}

CUresult cudart_integrity_answer(const struct cudart_integrity *integrity, uint32_t version,
				 uint64_t seconds, uint64_t answer[2])
{
	const struct cudart_host *host = integrity->host;
	struct {
		uint32_t driver_version;
		uint32_t version;
		uint32_t process;
		uint32_t thread;
		uint64_t cudart_table;
		uint64_t integrity_table;
		uint64_t integrity_function;
		uint64_t seconds;
	} told = {
		.driver_version = (uint32_t)host->driver_version(),
		.version = version,
		.process = (uint32_t)getpid(),
		.thread = (uint32_t)(uintptr_t)pthread_self(),
		.cudart_table = (uint64_t)(uintptr_t)integrity->cudart_table,
		.integrity_table = (uint64_t)(uintptr_t)integrity->integrity_table,
		.integrity_function = (uint64_t)(uintptr_t)integrity->integrity_function,
		.seconds = seconds,
	};
	uint8_t digest[MD2_BLOCK];
	struct md2 md2;

	/* Two of the three questions have fixed answers. */
	if (version % 10 < 2) {
		answer[0] = version % 10 ? 0x1841181c03cb675cu : 0x3341181c03cb675cu;
		answer[1] = 0x8ed383aa1f4cd1e8u;
		return CUDA_SUCCESS;
	}
	hmac_start(&md2, 0x36);
	md2_update(&md2, &told, sizeof(told));
	for (int i = 0; i < host->device_count(); i++) {
		CUresult result = hash_device(&md2, host, i);

		if (result != CUDA_SUCCESS)
			return result;
	}
	md2_final(&md2, digest);
	hmac_start(&md2, 0x5c);
	md2_update(&md2, digest, sizeof(digest));
	md2_final(&md2, digest);
	memcpy(answer, digest, sizeof(digest));
	return CUDA_SUCCESS;
}
