// Bit instructions: popc, clz, ffs, brev, byte_perm, funnel shifts, bit field extract and insert,
// multiplications' high halves, sums of absolute differences, packed dot products, saturation.
#define PROGRAM "bit_tricks"
#include "check.h"

static const int COUNT = 24;

struct Bits {
	uint64_t value[COUNT];
};

__global__ void compute(const uint32_t *a, const uint32_t *b, int count, Bits *bits)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	const uint32_t x = a[i], y = b[i];
	const uint64_t w = static_cast<uint64_t>(x) << 32 | y;
	uint32_t field, signed_field, inserted, shifted_left, shifted_right;
	asm("bfe.u32 %0, %1, %2, %3;" : "=r"(field) : "r"(x), "r"(y & 255), "r"(y >> 8 & 63));
	asm("bfe.s32 %0, %1, %2, %3;" : "=r"(signed_field) : "r"(x), "r"(y & 31), "r"(y >> 8 & 31));
	asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(inserted) : "r"(x), "r"(y), "r"(y & 31), "r"(y >> 8 & 31));
	asm("shl.b32 %0, %1, %2;" : "=r"(shifted_left) : "r"(x), "r"(y & 63));
	asm("shr.s32 %0, %1, %2;" : "=r"(shifted_right) : "r"(x), "r"(y & 63));
	bits[i] = {{static_cast<uint64_t>(__popc(x)),
		    static_cast<uint64_t>(__popcll(w)),
		    static_cast<uint64_t>(__clz(x)),
		    static_cast<uint64_t>(__clzll(w)),
		    static_cast<uint64_t>(__ffs(x)),
		    static_cast<uint64_t>(__ffsll(w)),
		    __brev(x),
		    __brevll(w),
		    __byte_perm(x, y, y & 0x7777),
		    __funnelshift_l(x, y, x & 63),
		    __funnelshift_r(x, y, x & 63),
		    __funnelshift_lc(x, y, x & 63),
		    __funnelshift_rc(x, y, x & 63),
		    field,
		    signed_field,
		    inserted,
		    __umulhi(x, y),
		    static_cast<uint32_t>(__mulhi(static_cast<int>(x), static_cast<int>(y))),
		    __umul64hi(w, ~w * 3),
		    __usad(x, y, 7),
		    static_cast<uint32_t>(__umul24(x, y)),
		    static_cast<uint32_t>(__dp4a(static_cast<int>(x), static_cast<int>(y), 1000)),
		    shifted_left,
		    shifted_right}};
}

static const char *const NAMES[COUNT] = {"popc", "popcll", "clz", "clzll", "ffs", "ffsll", "brev", "brevll",
					 "byte_perm", "funnelshift_l", "funnelshift_r", "funnelshift_lc",
					 "funnelshift_rc", "bfe.u32", "bfe.s32", "bfi", "umulhi", "mulhi", "umul64hi",
					 "usad", "umul24", "dp4a", "shl", "shr.s32"};

/// Bit by bit, without the intrinsics.
static Bits expect(uint32_t x, uint32_t y)
{
	const uint64_t w = static_cast<uint64_t>(x) << 32 | y, reversed_pair = static_cast<uint64_t>(y) << 32 | x;
	Bits bits = {};
	uint64_t *v = bits.value;
	v[2] = 32;
	v[3] = 64;
	for (int bit = 0; bit < 64; bit++) {
		const uint64_t in_x = bit < 32 ? x >> bit & 1 : 0, in_w = w >> bit & 1;
		v[0] += in_x;
		v[1] += in_w;
		if (in_x)
			v[2] = 31 - bit;
		if (in_w)
			v[3] = 63 - bit;
		if (in_x && !v[4])
			v[4] = bit + 1;
		if (in_w && !v[5])
			v[5] = bit + 1;
		v[6] |= bit < 32 ? in_x << (31 - bit) : 0;
		v[7] |= in_w << (63 - bit);
	}
	for (int k = 0; k < 4; k++)
		v[8] |= (reversed_pair >> 8 * (y >> 4 * k & 7) & 0xff) << 8 * k;
	const int turn = x & 31, clamped = (x & 63) < 32 ? x & 63 : 32;
	v[9] = static_cast<uint32_t>(reversed_pair << turn >> 32);
	v[10] = static_cast<uint32_t>(reversed_pair >> turn);
	v[11] = static_cast<uint32_t>(reversed_pair << clamped >> 32);
	v[12] = static_cast<uint32_t>(reversed_pair >> clamped);
	const int start = y & 255, length = y >> 8 & 63;
	for (int k = 0; k < length && k < 32; k++)
		if (start + k < 32)
			v[13] |= static_cast<uint64_t>(x >> (start + k) & 1) << k;
	const int start5 = y & 31, length5 = y >> 8 & 31;
	const int sign_at = start5 + length5 - 1 < 31 ? start5 + length5 - 1 : 31;
	for (int k = 0; k < 32 && length5; k++) {
		const int from = k < length5 && start5 + k < 32 ? start5 + k : sign_at;
		v[14] |= static_cast<uint64_t>(x >> from & 1) << k;
	}
	v[15] = y;
	for (int k = 0; k < length5 && start5 + k < 32; k++)
		v[15] = (v[15] & ~(1ull << (start5 + k))) | static_cast<uint64_t>(x >> k & 1) << (start5 + k);
	v[16] = static_cast<uint64_t>(x) * y >> 32;
	v[17] = static_cast<uint32_t>(static_cast<int64_t>(static_cast<int>(x)) * static_cast<int>(y) >> 32);
	v[18] = static_cast<uint64_t>(static_cast<unsigned __int128>(w) * (~w * 3) >> 64);
	v[19] = static_cast<uint32_t>((x > y ? x - y : y - x) + 7);
	v[20] = static_cast<uint32_t>((x & 0xffffff) * static_cast<uint64_t>(y & 0xffffff));
	int dot = 1000;
	for (int k = 0; k < 4; k++)
		dot += static_cast<int8_t>(x >> 8 * k) * static_cast<int8_t>(y >> 8 * k);
	v[21] = static_cast<uint32_t>(dot);
	v[22] = (y & 63) < 32 ? x << (y & 63) : 0;
	v[23] = static_cast<uint32_t>(static_cast<int>(x) >> ((y & 63) < 32 ? y & 63 : 31));
	return bits;
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 20000, 16, 1 << 26);
	std::vector<uint32_t> a(count), b(count);
	const uint32_t edges[] = {0, 1, 0x80000000u, 0xffffffffu};
	for (int i = 0; i < count; i++) {
		a[i] = i < 16 ? edges[i / 4] : hash(i);
		b[i] = i < 16 ? edges[i % 4] : hash(~i);
	}
	uint32_t *device_a = to_device(a), *device_b = to_device(b);
	Bits *device_bits = device_array<Bits>(count);
	compute<<<(count + 127) / 128, 128>>>(device_a, device_b, count, device_bits);
	CUDA(cudaGetLastError());
	const std::vector<Bits> bits = to_host(device_bits, count);
	for (int i = 0; i < count; i++) {
		const Bits expected = expect(a[i], b[i]);
		for (int k = 0; k < COUNT; k++)
			if (bits[i].value[k] != expected.value[k])
				FAIL("%s(%08x, %08x): %llx instead of %llx", NAMES[k], a[i], b[i],
				     static_cast<unsigned long long>(bits[i].value[k]),
				     static_cast<unsigned long long>(expected.value[k]));
	}
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(device_bits));
	std::printf("ok bit_tricks of %d pairs, %d operations\n", count, COUNT);
}
