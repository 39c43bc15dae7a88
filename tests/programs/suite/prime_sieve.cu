// Sieve of Eratosthenes over the odd numbers: bits cleared by atomics in global memory, counted
// with popc.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FAIL(...) (std::printf("FAIL prime_sieve " __VA_ARGS__), std::puts(""), std::exit(1))

#define CUDA(call)                                                                 \
	do {                                                                       \
		if (const cudaError_t error = (call))                              \
			FAIL("%s: %s", #call, cudaGetErrorString(error));          \
	} while (0)

/// The N of `--size N`, or `size`; ends the program when N is not from `least` to `most`.
static long size_option(int argc, char **argv, long size, long least, long most)
{
	if (argc == 1)
		return size;
	if (argc != 3 || std::strcmp(argv[1], "--size"))
		FAIL("does not know its arguments; usage: %s [--size N]", argv[0]);
	char *end;
	size = std::strtol(argv[2], &end, 10);
	if (*end || end == argv[2] || size < least || size > most)
		FAIL("--size %s: N must be from %ld to %ld", argv[2], least, most);
	return size;
}

template <typename T> static T *device_array(size_t count)
{
	T *array = nullptr;
	CUDA(cudaMalloc(&array, count * sizeof(T)));
	return array;
}

template <typename T> static T *to_device(const std::vector<T> &values)
{
	T *array = device_array<T>(values.size());
	CUDA(cudaMemcpy(array, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
	return array;
}

template <typename T> static std::vector<T> to_host(const T *array, size_t count)
{
	std::vector<T> values(count);
	CUDA(cudaMemcpy(values.data(), array, count * sizeof(T), cudaMemcpyDeviceToHost));
	return values;
}

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
