// Memory is allocated and freed while a host function reads and changes managed memory, and while one runs that touches none.
#include "../check.h"

__global__ void add(int *value)
{
	*value += 1;
}

static void change(void *value)
{
	*(int *)value *= 2;
}

static void nothing(void *)
{
}

int main()
{
	cudaStream_t stream;
	int *value, wanted = 1;

	CUDA(cudaMallocManaged(&value, sizeof(int)));
	CUDA(cudaStreamCreate(&stream));
	*value = 1;
	for (int round = 0; round < 40; round++) {
		void *more;

		add<<<1, 1, 0, stream>>>(value);
		CUDA(cudaLaunchHostFunc(stream, round % 2 ? change : nothing, value));
		CUDA(cudaMalloc(&more, 1 << 20));
		add<<<1, 1, 0, stream>>>(value);
		CUDA(cudaFree(more));
		wanted = (round % 2 ? (wanted + 1) * 2 : wanted + 1) + 1;
		wanted %= 1 << 20;
		CUDA(cudaStreamSynchronize(stream));
		*value %= 1 << 20;
		EXPECT(*value == wanted);
	}
	return passed();
}
