// Every atomic operation, in 32 and 64 bits, signed and unsigned, on global and shared memory,
// with the results that do not depend on the order; the values that the operations return must
// be a permutation that some order explains (checked for add, inc and exch).
#define PROGRAM "atomics"
#include "check.h"

#include <algorithm>

static const int THREADS = 256;
static const int BLOCKS = 4;
static const int TOTAL = THREADS * BLOCKS;

struct Cells {
	int add32, sub32, min32, max32, and32, or32, xor32, cas32, exch32;
	unsigned umin32, umax32, inc32, dec32;
	unsigned long long add64, and64, or64, xor64, cas64, exch64, umin64, umax64;
	long long min64, max64;
	float addf;
	double addd;
};

static Cells initial()
{
	Cells cells = {};
	cells.and32 = ~0;
	cells.and64 = ~0ull;
	cells.umin32 = ~0u;
	cells.umin64 = ~0ull;
	return cells;
}

__host__ __device__ static void values_of(int i, int &v32, long long &v64)
{
	v32 = static_cast<int>(hash(i));
	v64 = static_cast<long long>(static_cast<unsigned long long>(hash(i)) << 32 | hash(~i));
}

struct Returned {
	int *add, *inc, *exch;
};

__device__ static void update(Cells *c, int i, Returned returned, int slot)
{
	int v32;
	long long v64;
	values_of(i, v32, v64);
	const auto u64 = static_cast<unsigned long long>(v64);
	const int add = atomicAdd(&c->add32, 1);
	atomicSub(&c->sub32, v32);
	atomicMin(&c->min32, v32);
	atomicMax(&c->max32, v32);
	atomicAnd(&c->and32, v32 | i);
	atomicOr(&c->or32, 1 << (v32 & 15));
	atomicXor(&c->xor32, v32);
	const int exch = atomicExch(&c->exch32, i + 1);
	atomicMin(&c->umin32, static_cast<unsigned>(v32));
	atomicMax(&c->umax32, static_cast<unsigned>(v32));
	const int inc = static_cast<int>(atomicInc(&c->inc32, 99));
	atomicDec(&c->dec32, 99);
	atomicAdd(&c->add64, u64);
	atomicAnd(&c->and64, u64 | 1ull << (i & 63));
	atomicOr(&c->or64, 1ull << (v32 & 63));
	atomicXor(&c->xor64, u64);
	atomicExch(&c->exch64, 42ull);
	atomicMin(&c->umin64, u64);
	atomicMax(&c->umax64, u64);
	atomicMin(&c->min64, v64);
	atomicMax(&c->max64, v64);
	atomicAdd(&c->addf, static_cast<float>(i & 7)); // whole numbers below 2^24: exact in any order
	atomicAdd(&c->addd, static_cast<double>(v32));
	// Addition by compare-and-swap.
	for (int old = c->cas32, assumed; ;) {
		assumed = old;
		old = atomicCAS(&c->cas32, assumed, assumed + v32);
		if (old == assumed)
			break;
	}
	for (unsigned long long old = c->cas64, assumed; ;) {
		assumed = old;
		old = atomicCAS(&c->cas64, assumed, assumed + u64);
		if (old == assumed)
			break;
	}
	returned.add[slot] = add;
	returned.inc[slot] = inc;
	returned.exch[slot] = exch;
}

__global__ void on_global(Cells *cells, Returned returned)
{
	const int i = blockIdx.x * THREADS + threadIdx.x;
	update(cells, i, returned, i);
}

__global__ void on_shared(Cells *cells, Cells start, Returned returned)
{
	__shared__ Cells local;
	if (threadIdx.x == 0)
		local = start;
	__syncthreads();
	for (int i = threadIdx.x; i < TOTAL; i += THREADS)
		update(&local, i, returned, i);
	__syncthreads();
	if (threadIdx.x == 0)
		*cells = local;
}

static void check(const char *where, const Cells &found, std::vector<int> add, std::vector<int> inc, std::vector<int> exch)
{
	Cells e = initial();
	for (int i = 0; i < TOTAL; i++) {
		int v32;
		long long v64;
		values_of(i, v32, v64);
		const auto u64 = static_cast<unsigned long long>(v64);
		e.add32++;
		e.sub32 = static_cast<int>(static_cast<unsigned>(e.sub32) - static_cast<unsigned>(v32));
		e.cas32 = static_cast<int>(static_cast<unsigned>(e.cas32) + static_cast<unsigned>(v32));
		e.min32 = std::min(e.min32, v32);
		e.max32 = std::max(e.max32, v32);
		e.and32 &= v32 | i;
		e.or32 |= 1 << (v32 & 15);
		e.xor32 ^= v32;
		e.umin32 = std::min(e.umin32, static_cast<unsigned>(v32));
		e.umax32 = std::max(e.umax32, static_cast<unsigned>(v32));
		e.inc32 = e.inc32 >= 99 ? 0 : e.inc32 + 1;
		e.dec32 = e.dec32 == 0 || e.dec32 > 99 ? 99 : e.dec32 - 1;
		e.add64 += u64;
		e.cas64 += u64;
		e.and64 &= u64 | 1ull << (i & 63);
		e.or64 |= 1ull << (v32 & 63);
		e.xor64 ^= u64;
		e.exch64 = 42;
		e.umin64 = std::min(e.umin64, u64);
		e.umax64 = std::max(e.umax64, u64);
		e.min64 = std::min(e.min64, v64);
		e.max64 = std::max(e.max64, v64);
		e.addf += static_cast<float>(i & 7);
		e.addd += v32;
	}
#define SAME(cell)                             \
	if (found.cell != e.cell)              \
		FAIL("%s memory, " #cell, where)
	SAME(add32);
	SAME(sub32);
	SAME(min32);
	SAME(max32);
	SAME(and32);
	SAME(or32);
	SAME(xor32);
	SAME(cas32);
	SAME(umin32);
	SAME(umax32);
	SAME(inc32);
	SAME(dec32);
	SAME(add64);
	SAME(and64);
	SAME(or64);
	SAME(xor64);
	SAME(cas64);
	SAME(exch64);
	SAME(umin64);
	SAME(umax64);
	SAME(min64);
	SAME(max64);
	SAME(addf);
	SAME(addd);
	exch.push_back(found.exch32); // with what is left, each of 0 to TOTAL was there once
	std::sort(add.begin(), add.end());
	std::sort(inc.begin(), inc.end());
	std::sort(exch.begin(), exch.end());
	std::vector<int> wrapped(TOTAL);
	for (int i = 0; i < TOTAL; i++)
		wrapped[i] = i % 100;
	std::sort(wrapped.begin(), wrapped.end());
	for (int i = 0; i < TOTAL; i++)
		if (add[i] != i || exch[i] != i || inc[i] != wrapped[i])
			FAIL("%s memory: the returned values are no order of operations", where);
}

int main()
{
	Cells *cells = to_device(std::vector<Cells>(1, initial()));
	const Returned returned = {device_array<int>(TOTAL), device_array<int>(TOTAL), device_array<int>(TOTAL)};
	on_global<<<BLOCKS, THREADS>>>(cells, returned);
	CUDA(cudaGetLastError());
	check("global", to_host(cells, 1)[0], to_host(returned.add, TOTAL), to_host(returned.inc, TOTAL),
	      to_host(returned.exch, TOTAL));
	on_shared<<<1, THREADS>>>(cells, initial(), returned);
	CUDA(cudaGetLastError());
	check("shared", to_host(cells, 1)[0], to_host(returned.add, TOTAL), to_host(returned.inc, TOTAL),
	      to_host(returned.exch, TOTAL));
	for (void *array : {(void *)cells, (void *)returned.add, (void *)returned.inc, (void *)returned.exch})
		CUDA(cudaFree(array));
	std::printf("ok atomics by %d threads on global and shared memory\n", TOTAL);
}
