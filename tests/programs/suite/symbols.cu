// Variables of the module: initial values, copies to and from __device__ and __constant__ symbols
// with offsets, their addresses and sizes, pointers kept in a __constant__ variable, and
// persistence between launches.
#define PROGRAM "symbols"
#include "check.h"

static const int COUNT = 1000;

__device__ int counter = 41;
__device__ int table[COUNT] = {1, 2, 3};
__constant__ float factors[16] = {0.5f, 1.5f};
__device__ const char text[] = "a string of the module";
__constant__ int *where;
static __device__ double internal_value = 2.5;

__global__ void apply(int *out)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < COUNT) {
		table[i] += static_cast<int>(factors[i % 16] * i);
		where[i] = table[i] + text[i % sizeof text];
	}
	if (i == 0) {
		counter++;
		internal_value *= 2;
		*out = counter;
	}
}

int main()
{
	int initial[4];
	CUDA(cudaMemcpyFromSymbol(initial, table, sizeof initial));
	if (initial[0] != 1 || initial[2] != 3 || initial[3] != 0)
		FAIL("initial values of the table: %d .. %d %d", initial[0], initial[2], initial[3]);
	size_t size = 0;
	void *address = nullptr;
	CUDA(cudaGetSymbolSize(&size, table));
	CUDA(cudaGetSymbolAddress(&address, table));
	if (size != COUNT * sizeof(int))
		FAIL("size of the table: %zu", size);

	std::vector<int> expected(COUNT);
	for (int i = 0; i < COUNT; i++)
		expected[i] = i * i;
	CUDA(cudaMemcpyToSymbol(table, expected.data(), COUNT / 2 * sizeof(int)));
	CUDA(cudaMemcpyToSymbol(table, &expected[COUNT / 2], COUNT / 2 * sizeof(int), COUNT / 2 * sizeof(int)));
	const float replaced[3] = {8.0f, -2.0f, 4.25f};
	CUDA(cudaMemcpyToSymbol(factors, replaced, sizeof replaced, 5 * sizeof(float)));
	const float all_factors[16] = {0.5f, 1.5f, 0, 0, 0, 8.0f, -2.0f, 4.25f};
	int *out = device_array<int>(COUNT), *count = device_array<int>(1);
	CUDA(cudaMemcpyToSymbol(where, &out, sizeof out));

	for (int launch = 1; launch <= 3; launch++) {
		apply<<<(COUNT + 127) / 128, 128>>>(count);
		CUDA(cudaGetLastError());
		if (to_host(count, 1)[0] != 41 + launch)
			FAIL("launch %d: counter %d", launch, to_host(count, 1)[0]);
	}
	std::vector<int> from_symbol(COUNT);
	CUDA(cudaMemcpyFromSymbol(from_symbol.data(), table, COUNT * sizeof(int)));
	const std::vector<int> by_address = to_host(static_cast<int *>(address), COUNT), by_pointer = to_host(out, COUNT);
	const char copy[] = "a string of the module";
	for (int i = 0; i < COUNT; i++) {
		const int value = expected[i] + 3 * static_cast<int>(all_factors[i % 16] * i);
		if (from_symbol[i] != value || by_address[i] != value || by_pointer[i] != value + copy[i % sizeof copy])
			FAIL("element %d: %d %d %d instead of %d", i, from_symbol[i], by_address[i], by_pointer[i], value);
	}
	double doubled = 0;
	CUDA(cudaMemcpyFromSymbol(&doubled, internal_value, sizeof doubled));
	if (doubled != 20)
		FAIL("the internal variable is %g", doubled);
	int untouched = 0;
	if (cudaMemcpyFromSymbol(&untouched, &untouched, sizeof untouched) != cudaErrorInvalidSymbol)
		FAIL("a variable of the CPU passes for a symbol");
	cudaGetLastError();
	CUDA(cudaFree(out));
	CUDA(cudaFree(count));
	std::printf("ok symbols\n");
}
