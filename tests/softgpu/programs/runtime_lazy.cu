// With runtime_elsewhere.cu.
#include <cstdio>

int use_elsewhere();

__global__ void here(int *out) { *out = 7; }

static int use_here()
{
	int *out, value = 0;
	int result = cudaMalloc(&out, sizeof(int));

	if (result)
		return -result;
	here<<<1, 1>>>(out);
	cudaMemcpy(&value, out, sizeof(value), cudaMemcpyDeviceToHost);
	cudaFree(out);
	return value;
}

int main()
{
	int count = 0, result = cudaGetDeviceCount(&count);

	printf("%d %d", result, count);
	if (!result) {
		printf(" %d", use_here());
		printf(" %d", use_elsewhere());
		printf(" %d", use_here());
	}
	printf("\n");
	return 0;
}
