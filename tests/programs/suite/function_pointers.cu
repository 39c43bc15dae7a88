// Indirect calls: a table of device functions, pointers chosen per thread (a warp calls several
// functions at once), and a pointer that the CPU fetched from a symbol and passes back.
#define PROGRAM "function_pointers"
#include "check.h"

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
