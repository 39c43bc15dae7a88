// Mistakes planted for strict mode to find, one by the name of each kernel, and the same
// kernels put right.  Prints the error of the launch.
#include <cstdio>
#include <cstring>

constexpr int THREADS = 128;

// The tree's steps need a barrier between them.
template <bool RIGHT> __global__ void reduction(const int *in, int *out)
{
	__shared__ int sums[THREADS];

	sums[threadIdx.x] = in[threadIdx.x];
	__syncthreads();
	for (int half = THREADS / 2; half; half /= 2) {
		if (threadIdx.x < half)
			sums[threadIdx.x] += sums[threadIdx.x + half];
		if (RIGHT || half <= 32)
			__syncthreads();
	}
	if (threadIdx.x == 0)
		*out = sums[0];
}

// The next round overwrites what a slower warp still reads.
template <bool RIGHT> __global__ void rounds(const int *in, int *out)
{
	__shared__ int tile[THREADS];
	int sum = 0;

	for (int round = 0; round < 3; round++) {
		tile[threadIdx.x] = in[threadIdx.x] + round;
		__syncthreads();
		sum += tile[THREADS - 1 - threadIdx.x];
		if (RIGHT)
			__syncthreads();
	}
	out[threadIdx.x] = sum;
}

// Blocks add to one counter, in turn only when it is an atomic addition.
template <bool RIGHT> __global__ void counter(const int *in, int *out)
{
	if (threadIdx.x == 0) {
		if (RIGHT)
			atomicAdd(out, in[blockIdx.x]);
		else
			*out += in[blockIdx.x];
	}
}

template <bool RIGHT> __global__ void unwritten_shared(const int *in, int *out)
{
	__shared__ int tile[THREADS + 1];

	tile[threadIdx.x] = in[threadIdx.x];
	if (RIGHT && threadIdx.x == 0)
		tile[THREADS] = 0;
	__syncthreads();
	out[threadIdx.x] = tile[threadIdx.x + 1];
}

// `in` has 3 THREADS + 1 elements, of which the first 2 THREADS and the last are written.
template <bool RIGHT> __global__ void unwritten_global(const int *in, int *out)
{
	out[threadIdx.x] = in[threadIdx.x + (RIGHT ? 1 : 2) * THREADS];
}

template <bool RIGHT> __global__ void beyond_the_end(const int *in, int *out)
{
	out[threadIdx.x] = in[threadIdx.x + (RIGHT ? 0 : 3 * THREADS)];
}

// A flag that another warp waits for orders what came before it.
template <bool RIGHT> __global__ void flag(const int *in, int *out)
{
	__shared__ int value;
	__shared__ volatile int ready;

	if (threadIdx.x == 0)
		ready = 0;
	__syncthreads();
	if (threadIdx.x == 32) {
		value = in[0];
		if (RIGHT) {
			__threadfence_block();
			ready = 1;
		}
	}
	if (threadIdx.x == 0) {
		while (RIGHT && !ready)
			;
		out[0] = value;
	}
}

// Loaded as a whole, of which the padding is never written.
template <bool RIGHT> __global__ void padding(const int *in, int *out)
{
	struct alignas(8) Padded {
		char letter;
		int number;
	} *padded = (Padded *)(in + 2 * THREADS) + threadIdx.x % 32;

	if (threadIdx.x >= 32)
		return;
	if (RIGHT) {
		padded->letter = 'x';
		padded->number = 7;
	}
	out[threadIdx.x] = (int)(*(volatile unsigned long long *)padded >> 32);
}

#define CASE(name) { #name, name<false>, name<true> }

int main(int, char **words)
{
	static const struct {
		const char *name;
		void (*wrong)(const int *, int *), (*right)(const int *, int *);
	} cases[] = {
		CASE(reduction), CASE(rounds), CASE(counter), CASE(unwritten_shared), CASE(unwritten_global),
		CASE(beyond_the_end), CASE(flag), CASE(padding),
	};
	int *in, *out;

	cudaMalloc(&in, (3 * THREADS + 1) * sizeof(int));
	cudaMalloc(&out, THREADS * sizeof(int));
	cudaMemset(in, 0, 2 * THREADS * sizeof(int));
	cudaMemset(in + 3 * THREADS, 0, sizeof(int));
	cudaMemset(out, 0, THREADS * sizeof(int));
	for (const auto &each : cases) {
		if (std::strcmp(each.name, words[1]))
			continue;
		const int blocks = std::strcmp(words[1], "counter") ? 1 : 4;
		(std::strcmp(words[2], "right") ? each.wrong : each.right)<<<blocks, THREADS>>>(in, out);
		std::puts(cudaGetErrorName(cudaDeviceSynchronize()));
	}
}
