// Sieve of Eratosthenes over the odd numbers: bits cleared by atomics in global memory, counted
// with popc.
#define PROGRAM "prime_sieve"
#include "check.h"

#include <cmath>

/// Bit i of `bits` stands for the number 2 i + 1.
__global__ void strike(unsigned *bits, int odds, int prime)
{
	const long long i = (static_cast<long long>(prime) * prime - 1) / 2 +
			    static_cast<long long>(blockIdx.x * blockDim.x + threadIdx.x) * prime;
	if (i < odds)
		atomicAnd(&bits[i / 32], ~(1u << i % 32));
}

__global__ void count(const unsigned *bits, int words, int *total)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < words && bits[i])
		atomicAdd(total, __popc(bits[i]));
}

int main(int argc, char **argv)
{
	const int limit = size_option(argc, argv, 300000, 10, 1 << 30); // primes below it
	const int odds = limit / 2, words = (odds + 31) / 32;
	std::vector<unsigned> initial(words, ~0u);
	initial[0] &= ~1u; // 1 is no prime
	if (odds % 32)
		initial[words - 1] &= (1u << odds % 32) - 1;

	std::vector<bool> prime(limit, true);
	prime[0] = prime[1] = false;
	for (int p = 2; p <= (limit - 1) / p; p++)
		if (prime[p])
			for (int multiple = p * p; multiple <= limit - 1 - p; multiple += p)
				prime[multiple + p] = prime[multiple] = false;

	unsigned *bits = to_device(initial);
	int *total = to_device(std::vector<int>(1, 0));
	for (int p = 3; p <= (limit - 1) / p; p += 2) {
		if (!prime[p])
			continue;
		const int multiples = (odds - (p * p - 1) / 2 + p - 1) / p;
		if (multiples > 0)
			strike<<<(multiples + 127) / 128, 128>>>(bits, odds, p);
		CUDA(cudaGetLastError());
	}
	count<<<(words + 127) / 128, 128>>>(bits, words, total);
	CUDA(cudaGetLastError());

	const std::vector<unsigned> sieve = to_host(bits, words);
	int expected = 0;
	for (int n = 3; n < 2 * odds; n += 2) {
		if ((sieve[n / 2 / 32] >> n / 2 % 32 & 1) != prime[n])
			FAIL("%d should %sbe prime", n, prime[n] ? "" : "not ");
		expected += prime[n];
	}
	if (to_host(total, 1)[0] != expected)
		FAIL("%d odd primes instead of %d", to_host(total, 1)[0], expected);
	CUDA(cudaFree(bits));
	CUDA(cudaFree(total));
	std::printf("ok prime_sieve below %d: %d primes\n", limit, expected + 1);
}
