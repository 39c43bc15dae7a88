// Variables of a module: constants, globals, their addresses and sizes.
#include "check.h"

__constant__ int weights[16];
__device__ int counter = 5;
__device__ float table[1000];

__global__ void use(int *out)
{
	int sum = 0;
	for (int i = 0; i < 16; i++)
		sum += weights[i];
	out[0] = sum;
	out[1] = counter;
	counter = 9;
	table[999] = 2.5f;
}

int main()
{
	int values[16], result[2], after, *out;
	float last;
	void *address;
	size_t bytes;
	for (int i = 0; i < 16; i++)
		values[i] = i * i;
	CUDA(cudaMemcpyToSymbol(weights, values, sizeof values));
	CUDA(cudaMalloc(&out, sizeof result));
	use<<<1, 1>>>(out);
	CUDA(cudaMemcpy(result, out, sizeof result, cudaMemcpyDeviceToHost));
	EXPECT(result[0] == 1240 && result[1] == 5);
	CUDA(cudaMemcpyFromSymbol(&after, counter, sizeof after));
	EXPECT(after == 9);
	CUDA(cudaMemcpyFromSymbol(&last, table, sizeof last, 999 * sizeof(float)));
	EXPECT(last == 2.5f);
	CUDA(cudaGetSymbolAddress(&address, table));
	CUDA(cudaGetSymbolSize(&bytes, table));
	EXPECT(bytes == sizeof table);
	CUDA(cudaMemcpy(&last, (float *)address + 999, sizeof last, cudaMemcpyDefault));
	EXPECT(last == 2.5f);
	return passed();
}
