// Kernels for test_engine_programs.py: one feature each, checked against numpy there.
#include <cassert>
#include <cooperative_groups.h>
#include <cstdio>

namespace cg = cooperative_groups;

extern "C" __global__ void vector_add(const float *a, const float *b, float *c, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		c[i] = a[i] + b[i];
}

extern "C" __global__ void sum(const int *in, int *out, int n)
{
	__shared__ int partial[32];
	int total = 0;
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		total += in[i];
	for (int offset = 16; offset; offset >>= 1)
		total += __shfl_down_sync(~0u, total, offset);
	if (threadIdx.x % 32 == 0)
		partial[threadIdx.x / 32] = total;
	__syncthreads();
	if (threadIdx.x < 32) {
		total = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
		for (int offset = 16; offset; offset >>= 1)
			total += __shfl_xor_sync(~0u, total, offset);
		if (threadIdx.x == 0)
			atomicAdd(out, total);
	}
}

extern "C" __global__ void matmul(const float *a, const float *b, float *c, int n)
{
	__shared__ float tile_a[16][16], tile_b[16][16];
	int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
	float total = 0;
	for (int t = 0; t < n; t += 16) {
		tile_a[y][x] = a[row * n + t + x];
		tile_b[y][x] = b[(t + y) * n + column];
		__syncthreads();
		for (int k = 0; k < 16; k++)
			total += tile_a[y][k] * tile_b[k][x];
		__syncthreads();
	}
	c[row * n + column] = total;
}

__device__ __noinline__ int fibonacci(int n)
{
	return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

__device__ __noinline__ int collatz(unsigned long long v)
{
	int steps = 0;
	while (v != 1) {
		v = v & 1 ? 3 * v + 1 : v >> 1;
		steps++;
	}
	return steps;
}

extern "C" __global__ void diverge(int *out)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	out[i] = collatz(i + 1) + (i % 7 == 0 ? fibonacci(i % 12) : 0);
}

typedef int (*function)(int);
__device__ int twice(int x) { return 2 * x; }
__device__ int square(int x) { return x * x; }
__device__ int negate(int x) { return -x; }
__device__ function functions[3] = { twice, square, negate };

extern "C" __global__ void indirect(int *out)
{
	out[threadIdx.x] = functions[threadIdx.x % 3](threadIdx.x);
}

extern "C" __global__ void switches(const int *in, int *out)
{
	int value = in[threadIdx.x], local[8];
	for (int k = 0; k < 8; k++)
		local[k] = k * value;
	switch (value % 9) {
	case 0: value += 1; break;
	case 1: value *= 3; break;
	case 2: value -= 5; break;
	case 3: value = -value; break;
	case 4: value ^= 0x55; break;
	case 5: value *= value; break;
	case 6: value = local[value & 7]; break;
	default: value = 1000;
	}
	out[threadIdx.x] = value;
}

__device__ int lock = 0, counter = 0;

extern "C" __global__ void spin_lock(int *out)
{
	while (atomicCAS(&lock, 0, 1) != 0)
		;
	counter = counter + 1;
	__threadfence();
	atomicExch(&lock, 0);
	atomicMax(out, counter);
}

extern "C" __global__ void atomics(float *f, double *d, unsigned long long *u, int *lowest, unsigned *wrapped)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	atomicAdd(f, 1.0f);
	atomicAdd(d, 0.5);
	atomicAdd(u, (unsigned long long)i);
	atomicMin(lowest, -i);
	atomicInc(wrapped, 6);
}

extern "C" __global__ void votes(const int *in, unsigned *out)
{
	int v = in[threadIdx.x];
	unsigned *o = out + threadIdx.x * 6;
	o[0] = __ballot_sync(~0u, v > 50);
	o[1] = __any_sync(~0u, v > 98);
	o[2] = __all_sync(~0u, v >= 0);
	o[3] = __match_any_sync(~0u, v & 3);
#if __CUDA_ARCH__ >= 800
	o[4] = __reduce_add_sync(~0u, v);
#else
	o[4] = 0;
#endif
	o[5] = v % 3 == 0 ? __activemask() : 0;
}

extern "C" __global__ void barrier_reductions(const int *in, int *out)
{
	int v = in[threadIdx.x];
	out[threadIdx.x * 3] = __syncthreads_count(v > 10);
	out[threadIdx.x * 3 + 1] = __syncthreads_and(v < 90);
	out[threadIdx.x * 3 + 2] = __syncthreads_or(v == 77);
}

extern "C" __global__ void dynamic_shared(int *out)
{
	extern __shared__ int words[];
	words[threadIdx.x] = threadIdx.x * 3;
	__syncthreads();
	out[threadIdx.x] = words[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void grid_sync(int *x, int n)
{
	auto grid = cg::this_grid();
	for (int k = 0; k < 5; k++) {
		int i = grid.thread_rank(), v = x[(i + 1) % n];
		grid.sync();
		x[i] = v + 1;
		grid.sync();
	}
}

extern "C" __global__ void hello(int x)
{
	if (threadIdx.x < 2)
		printf("hello %d from %u: %s %5.2f %c %llx%%\n", x, threadIdx.x, "text", 1.5 * threadIdx.x, 'q', 0x123456789abull);
}

extern "C" __global__ void asserting(int limit)
{
	assert((int)threadIdx.x < limit);
}

extern "C" __global__ void trapping(void) { __trap(); }
extern "C" __global__ void writes_to(int *where) { *where = 1; }
extern "C" __global__ void endless(volatile int *flag) { while (!*flag) ; }
__device__ __noinline__ int bottomless(int n) { volatile int here = n; return n == -1 ? 0 : bottomless(n + 1) + here; }
extern "C" __global__ void recurses(int *out) { *out = bottomless(*out); }

extern "C" __global__ void waits_alone(void)
{
	if (threadIdx.x < 32)
		asm volatile("bar.sync 1, 64;");
}

extern "C" __global__ void shared_overrun(int index)
{
	__shared__ volatile int words[32];
	words[threadIdx.x + index] = 1;
}

extern "C" __global__ void heap(int *out)
{
	int *p = (int *)malloc(64);
	p[3] = threadIdx.x;
	out[threadIdx.x] = p[3] + 1;
	free(p);
}

extern "C" __global__ void vectors(const float4 *in, float4 *out)
{
	float4 v = in[threadIdx.x];
	out[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
}

__constant__ int table[4] = { 10, 20, 30, 40 };
__device__ const char *const names[2] = { "zero", "one" };
extern "C" __global__ void constants(int *out)
{
	out[threadIdx.x] = table[threadIdx.x & 3] + names[threadIdx.x & 1][0];
}
