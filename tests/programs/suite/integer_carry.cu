// Extended-precision arithmetic: 256-bit sums, differences and products by carry chains, and the
// condition bit across kinds of instructions.  After sub.cc the bit is the carry of a + ~b + 1,
// that is, set when nothing was borrowed: nvcc's own division of 128-bit integers relies on it.
#define PROGRAM "integer_carry"
#include "check.h"

static const int LIMBS = 8;

struct Wide {
	uint32_t limb[LIMBS];
};

__device__ static Wide add(const Wide &a, const Wide &b)
{
	Wide sum;
	asm("add.cc.u32 %0, %8, %16;\n\t"
	    "addc.cc.u32 %1, %9, %17;\n\t"
	    "addc.cc.u32 %2, %10, %18;\n\t"
	    "addc.cc.u32 %3, %11, %19;\n\t"
	    "addc.cc.u32 %4, %12, %20;\n\t"
	    "addc.cc.u32 %5, %13, %21;\n\t"
	    "addc.cc.u32 %6, %14, %22;\n\t"
	    "addc.u32 %7, %15, %23;"
	    : "=r"(sum.limb[0]), "=r"(sum.limb[1]), "=r"(sum.limb[2]), "=r"(sum.limb[3]), "=r"(sum.limb[4]),
	      "=r"(sum.limb[5]), "=r"(sum.limb[6]), "=r"(sum.limb[7])
	    : "r"(a.limb[0]), "r"(a.limb[1]), "r"(a.limb[2]), "r"(a.limb[3]), "r"(a.limb[4]), "r"(a.limb[5]),
	      "r"(a.limb[6]), "r"(a.limb[7]), "r"(b.limb[0]), "r"(b.limb[1]), "r"(b.limb[2]), "r"(b.limb[3]),
	      "r"(b.limb[4]), "r"(b.limb[5]), "r"(b.limb[6]), "r"(b.limb[7]));
	return sum;
}

/// a - b in `difference`; returns what addc makes of the condition bit afterwards.
__device__ static uint32_t subtract(const Wide &a, const Wide &b, Wide &difference)
{
	uint32_t bit;
	asm("sub.cc.u32 %0, %9, %17;\n\t"
	    "subc.cc.u32 %1, %10, %18;\n\t"
	    "subc.cc.u32 %2, %11, %19;\n\t"
	    "subc.cc.u32 %3, %12, %20;\n\t"
	    "subc.cc.u32 %4, %13, %21;\n\t"
	    "subc.cc.u32 %5, %14, %22;\n\t"
	    "subc.cc.u32 %6, %15, %23;\n\t"
	    "subc.cc.u32 %7, %16, %24;\n\t"
	    "addc.u32 %8, 0, 0;"
	    : "=r"(difference.limb[0]), "=r"(difference.limb[1]), "=r"(difference.limb[2]), "=r"(difference.limb[3]),
	      "=r"(difference.limb[4]), "=r"(difference.limb[5]), "=r"(difference.limb[6]), "=r"(difference.limb[7]),
	      "=r"(bit)
	    : "r"(a.limb[0]), "r"(a.limb[1]), "r"(a.limb[2]), "r"(a.limb[3]), "r"(a.limb[4]), "r"(a.limb[5]),
	      "r"(a.limb[6]), "r"(a.limb[7]), "r"(b.limb[0]), "r"(b.limb[1]), "r"(b.limb[2]), "r"(b.limb[3]),
	      "r"(b.limb[4]), "r"(b.limb[5]), "r"(b.limb[6]), "r"(b.limb[7]));
	return bit;
}

/// 128 bits of a 64-bit product by mad chains.
__device__ static void multiply(const uint32_t *a, const uint32_t *b, uint32_t *product)
{
	asm("mul.lo.u32 %0, %4, %6;\n\t"
	    "mul.hi.u32 %1, %4, %6;\n\t"
	    "mad.lo.cc.u32 %1, %4, %7, %1;\n\t"
	    "madc.hi.u32 %2, %4, %7, 0;\n\t"
	    "mad.lo.cc.u32 %1, %5, %6, %1;\n\t"
	    "madc.hi.cc.u32 %2, %5, %6, %2;\n\t"
	    "addc.u32 %3, 0, 0;\n\t"
	    "mad.lo.cc.u32 %2, %5, %7, %2;\n\t"
	    "madc.hi.u32 %3, %5, %7, %3;"
	    : "=&r"(product[0]), "=&r"(product[1]), "=&r"(product[2]), "=&r"(product[3])
	    : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]));
}

struct Results {
	Wide sum, difference;
	uint32_t not_borrowed, product[4];
};

__global__ void compute(const Wide *a, const Wide *b, int count, Results *results)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= count)
		return;
	results[i].sum = add(a[i], b[i]);
	results[i].not_borrowed = subtract(a[i], b[i], results[i].difference);
	multiply(a[i].limb, b[i].limb, results[i].product);
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 5000, 1, 1 << 24);
	std::vector<Wide> a(count), b(count);
	for (int i = 0; i < count; i++)
		for (int k = 0; k < LIMBS; k++) {
			// Many limbs of all zeros or all ones, so that carries travel far.
			const uint32_t random = hash(i * LIMBS + k);
			a[i].limb[k] = random % 4 == 0 ? 0 : random % 4 == 1 ? ~0u : hash(random);
			b[i].limb[k] = random % 8 == 0 ? 0 : random % 8 < 3 ? a[i].limb[k] : hash(~random);
		}
	Wide *device_a = to_device(a), *device_b = to_device(b);
	Results *device_results = device_array<Results>(count);
	compute<<<(count + 63) / 64, 64>>>(device_a, device_b, count, device_results);
	CUDA(cudaGetLastError());
	const std::vector<Results> results = to_host(device_results, count);
	for (int i = 0; i < count; i++) {
		const Results &r = results[i];
		uint64_t carry = 0, borrow = 0;
		for (int k = 0; k < LIMBS; k++) {
			const uint64_t sum = static_cast<uint64_t>(a[i].limb[k]) + b[i].limb[k] + carry;
			const uint64_t difference = static_cast<uint64_t>(a[i].limb[k]) - b[i].limb[k] - borrow;
			carry = sum >> 32;
			borrow = difference >> 63;
			if (r.sum.limb[k] != static_cast<uint32_t>(sum))
				FAIL("pair %d, word %d of the sum: %08x", i, k, r.sum.limb[k]);
			if (r.difference.limb[k] != static_cast<uint32_t>(difference))
				FAIL("pair %d, word %d of the difference: %08x", i, k, r.difference.limb[k]);
		}
		if (r.not_borrowed != !borrow)
			FAIL("pair %d: addc after subc.cc adds %u, but the difference %s", i, r.not_borrowed,
			     borrow ? "borrowed" : "did not borrow");
		const unsigned __int128 product = static_cast<unsigned __int128>(static_cast<uint64_t>(a[i].limb[1]) << 32 |
										 a[i].limb[0]) *
						  (static_cast<uint64_t>(b[i].limb[1]) << 32 | b[i].limb[0]);
		for (int k = 0; k < 4; k++)
			if (r.product[k] != static_cast<uint32_t>(product >> 32 * k))
				FAIL("pair %d, word %d of the product: %08x", i, k, r.product[k]);
	}
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(device_results));
	std::printf("ok integer_carry of %d pairs of 256 bits\n", count);
}
