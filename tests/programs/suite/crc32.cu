// CRC-32 (the reflected polynomial of IEEE 802.3) of a buffer: threads take equal pieces with a
// table in constant memory, and the pieces are joined by shifting checksums over zero bytes with
// matrices over GF(2).
#define PROGRAM "crc32"
#include "check.h"

#include <utility>

static const int PIECE = 256;

__constant__ uint32_t table[256];

/// The piece's register contents from a zero register: no inversion before or after.
__global__ void crc_pieces(const uint8_t *bytes, int pieces, uint32_t *registers)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= pieces)
		return;
	uint32_t crc = 0;
	for (int k = 0; k < PIECE; k++)
		crc = table[(crc ^ bytes[i * PIECE + k]) & 0xff] ^ crc >> 8;
	registers[i] = crc;
}

struct Matrix {
	uint32_t column[32];

	__host__ __device__ uint32_t operator*(uint32_t vector) const
	{
		uint32_t product = 0;
		for (int bit = 0; bit < 32; bit++)
			if (vector >> bit & 1)
				product ^= column[bit];
		return product;
	}
};

/// Joins neighbours: `shift` moves a register over as many zero bytes as the right one covers.
__global__ void join(const uint32_t *in, uint32_t *out, int pairs, Matrix shift)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < pairs)
		out[i] = shift * in[2 * i] ^ in[2 * i + 1];
}

int main(int argc, char **argv)
{
	const long asked = size_option(argc, argv, 1024, 1, 1 << 20); // pieces
	int pieces = 1;
	while (pieces < asked)
		pieces *= 2;

	uint32_t host_table[256];
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t crc = i;
		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
		host_table[i] = crc;
	}
	CUDA(cudaMemcpyToSymbol(table, host_table, sizeof host_table));

	const auto checksum = [&](uint32_t crc, const uint8_t *bytes, size_t length) {
		for (size_t i = 0; i < length; i++)
			crc = host_table[(crc ^ bytes[i]) & 0xff] ^ crc >> 8;
		return crc;
	};
	const uint32_t known = ~checksum(~0u, reinterpret_cast<const uint8_t *>("123456789"), 9);
	if (known != 0xcbf43926u)
		FAIL("the table is wrong: check value %08x", known);

	std::vector<uint8_t> bytes(static_cast<size_t>(pieces) * PIECE);
	for (size_t i = 0; i < bytes.size(); i++)
		bytes[i] = static_cast<uint8_t>(hash(static_cast<uint32_t>(i)));
	const uint32_t expected = checksum(~0u, bytes.data(), bytes.size());
	// The initial ~0 acts on the first four bytes only.
	for (int i = 0; i < 4; i++)
		bytes[i] ^= 0xff;

	uint8_t *device_bytes = to_device(bytes);
	uint32_t *in = device_array<uint32_t>(pieces), *out = device_array<uint32_t>(pieces);
	crc_pieces<<<(pieces + 127) / 128, 128>>>(device_bytes, pieces, in);
	CUDA(cudaGetLastError());
	Matrix shift;
	const std::vector<uint8_t> zeros(PIECE);
	for (int bit = 0; bit < 32; bit++)
		shift.column[bit] = checksum(1u << bit, zeros.data(), PIECE);
	for (int pairs = pieces / 2; pairs > 0; pairs /= 2) {
		join<<<(pairs + 127) / 128, 128>>>(in, out, pairs, shift);
		CUDA(cudaGetLastError());
		std::swap(in, out);
		Matrix twice;
		for (int bit = 0; bit < 32; bit++)
			twice.column[bit] = shift * shift.column[bit];
		shift = twice;
	}
	const uint32_t crc = to_host(in, 1)[0];
	if (crc != expected)
		FAIL("%08x instead of %08x", ~crc, ~expected);
	CUDA(cudaFree(device_bytes));
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	std::printf("ok crc32 of %zu bytes: %08x\n", bytes.size(), ~crc);
}
