// Indirect calls: a table of device functions, pointers chosen per thread (a warp calls several
// functions at once), and a pointer that the CPU fetched from a symbol and passes back.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FAIL(...) (std::printf("FAIL function_pointers " __VA_ARGS__), std::puts(""), std::exit(1))

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

/// A bijective mix of 32 bits (lowbias32, C. Wellons, "Prospecting for Hash Functions", 2018).
__host__ __device__ static inline uint32_t hash(uint32_t x)
{
	x = (x ^ (x >> 16)) * 0x7feb352du;
	x = (x ^ (x >> 15)) * 0x846ca68bu;
	return x ^ (x >> 16);
}

typedef unsigned (*Operation)(unsigned, unsigned);

__host__ __device__ static unsigned add(unsigned a, unsigned b)
{
	return a + b;
}

__host__ __device__ static unsigned multiply(unsigned a, unsigned b)
{
	return a * b;
}

__host__ __device__ static unsigned collatz(unsigned a, unsigned b)
{
	for (unsigned steps = 0; steps < b % 64 && a > 1; steps++)
		a = a % 2 ? 3 * a + 1 : a / 2;
	return a;
}

__host__ __device__ static unsigned gcd(unsigned a, unsigned b)
{
	while (b) {
		const unsigned rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

static const Operation HOST_TABLE[] = {add, multiply, collatz, gcd};
__device__ Operation table[] = {add, multiply, collatz, gcd};

__global__ void by_table(const unsigned *a, const unsigned *b, unsigned *out, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		out[i] = table[a[i] % 4](a[i], b[i]);
}

__global__ void by_pointer(Operation operation, const unsigned *a, const unsigned *b, unsigned *out, int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		out[i] = operation(a[i], b[i]);
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 5000, 1, 1 << 26);
	std::vector<unsigned> a(count), b(count);
	for (int i = 0; i < count; i++) {
		a[i] = hash(i) >> i % 20;
		b[i] = hash(~i) >> i % 23;
	}
	unsigned *device_a = to_device(a), *device_b = to_device(b), *out = device_array<unsigned>(count);
	const int blocks = (count + 127) / 128;
	by_table<<<blocks, 128>>>(device_a, device_b, out, count);
	CUDA(cudaGetLastError());
	std::vector<unsigned> results = to_host(out, count);
	for (int i = 0; i < count; i++)
		if (results[i] != HOST_TABLE[a[i] % 4](a[i], b[i]))
			FAIL("by table, element %d: %u instead of %u", i, results[i], HOST_TABLE[a[i] % 4](a[i], b[i]));

	Operation pointers[4];
	CUDA(cudaMemcpyFromSymbol(pointers, table, sizeof pointers));
	for (int k = 0; k < 4; k++) {
		by_pointer<<<blocks, 128>>>(pointers[k], device_a, device_b, out, count);
		CUDA(cudaGetLastError());
		results = to_host(out, count);
		for (int i = 0; i < count; i++)
			if (results[i] != HOST_TABLE[k](a[i], b[i]))
				FAIL("function %d, element %d: %u instead of %u", k, i, results[i],
				     HOST_TABLE[k](a[i], b[i]));
	}
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(out));
	std::printf("ok function_pointers of %d calls\n", 5 * count);
}
