// SHA-256 (FIPS 180-4) of many messages of different lengths, a thread each.  CPU and GPU share
// the code, so the standard's known answers are checked too.
#define PROGRAM "sha256"
#include "check.h"

struct Digest {
	uint32_t word[8];
};

static __device__ const uint32_t ROUND_CONSTANTS[64] = {
#define ROUNDS                                                                                                      \
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, \
	0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, \
	0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, \
	0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, \
	0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, \
	0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, \
	0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, \
	0xc67178f2
	ROUNDS};
static const uint32_t HOST_ROUND_CONSTANTS[64] = {ROUNDS};

__host__ __device__ static uint32_t turn(uint32_t x, int bits)
{
	return x >> bits | x << (32 - bits);
}

__host__ __device__ static void compress(Digest &digest, uint32_t *schedule, const uint32_t *constants)
{
	uint32_t a = digest.word[0], b = digest.word[1], c = digest.word[2], d = digest.word[3];
	uint32_t e = digest.word[4], f = digest.word[5], g = digest.word[6], h = digest.word[7];
	for (int i = 0; i < 64; i++) {
		if (i >= 16) {
			const uint32_t w15 = schedule[(i - 15) % 16], w2 = schedule[(i - 2) % 16];
			schedule[i % 16] += (turn(w15, 7) ^ turn(w15, 18) ^ w15 >> 3) + schedule[(i - 7) % 16] +
					    (turn(w2, 17) ^ turn(w2, 19) ^ w2 >> 10);
		}
		const uint32_t t1 = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] +
				    schedule[i % 16];
		const uint32_t t2 = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
		h = g;
		g = f;
		f = e;
		e = d + t1;
		d = c;
		c = b;
		b = a;
		a = t1 + t2;
	}
	const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
	for (int i = 0; i < 8; i++)
		digest.word[i] += sums[i];
}

__host__ __device__ static Digest sha256(const uint8_t *message, uint32_t length, const uint32_t *constants)
{
	Digest digest = {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
			  0x5be0cd19}};
	const uint32_t padded = (length + 9 + 63) / 64 * 64;
	for (uint32_t start = 0; start < padded; start += 64) {
		uint32_t block[16];
		for (uint32_t i = 0; i < 16; i++) {
			uint32_t word = 0;
			for (uint32_t k = 0; k < 4; k++) {
				const uint32_t at = start + 4 * i + k;
				word = word << 8 | (at < length ? message[at] : at == length ? 0x80 : 0);
			}
			block[i] = word;
		}
		if (start + 64 == padded) {
			block[14] = length >> 29;
			block[15] = length << 3;
		}
		compress(digest, block, constants);
	}
	return digest;
}

__global__ void digest_all(const uint8_t *bytes, const uint32_t *starts, int count, Digest *digests)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		digests[i] = sha256(bytes + starts[i], starts[i + 1] - starts[i], ROUND_CONSTANTS);
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 1000, 3, 1 << 20);
	const char *const long_one = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
	std::vector<uint8_t> bytes;
	std::vector<uint32_t> starts;
	for (int i = 0; i < count; i++) {
		starts.push_back(static_cast<uint32_t>(bytes.size()));
		if (i < 3) {
			const char *const text = i == 0 ? "" : i == 1 ? "abc" : long_one;
			bytes.insert(bytes.end(), text, text + std::strlen(text));
			continue;
		}
		for (int k = 0; k < i % 200; k++)
			bytes.push_back(static_cast<uint8_t>(hash(i * 256 + k)));
	}
	starts.push_back(static_cast<uint32_t>(bytes.size()));
	uint8_t *device_bytes = to_device(bytes);
	uint32_t *device_starts = to_device(starts);
	Digest *device_digests = device_array<Digest>(count);
	digest_all<<<(count + 63) / 64, 64>>>(device_bytes, device_starts, count, device_digests);
	CUDA(cudaGetLastError());

	const std::vector<Digest> digests = to_host(device_digests, count);
	const Digest known[3] = {{{0xe3b0c442, 0x98fc1c14, 0x9afbf4c8, 0x996fb924, 0x27ae41e4, 0x649b934c, 0xa495991b,
				   0x7852b855}},
				 {{0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223, 0xb00361a3, 0x96177a9c, 0xb410ff61,
				   0xf20015ad}},
				 {{0x248d6a61, 0xd20638b8, 0xe5c02693, 0x0c3e6039, 0xa33ce459, 0x64ff2167, 0xf6ecedd4,
				   0x19db06c1}}};
	for (int i = 0; i < count; i++) {
		const Digest expected =
			i < 3 ? known[i]
			      : sha256(bytes.data() + starts[i], starts[i + 1] - starts[i], HOST_ROUND_CONSTANTS);
		if (std::memcmp(&digests[i], &expected, sizeof expected))
			FAIL("message %d of %u bytes: %08x ... instead of %08x ...", i, starts[i + 1] - starts[i],
			     digests[i].word[0], expected.word[0]);
	}
	CUDA(cudaFree(device_bytes));
	CUDA(cudaFree(device_starts));
	CUDA(cudaFree(device_digests));
	std::printf("ok sha256 of %d messages, %zu bytes\n", count, bytes.size());
}
