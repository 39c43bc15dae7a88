// Managed memory: the processor fills two arrays, a kernel adds them, the processor reads the sum.
#include "../check.h"

__global__ void add(const float *a, const float *b, float *sum, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		sum[i] = a[i] + b[i];
}

int main()
{
	const int n = 1 << 20;
	float *a, *b, *sum;

	CUDA(cudaMallocManaged(&a, n * sizeof(float)));
	CUDA(cudaMallocManaged(&b, n * sizeof(float)));
	CUDA(cudaMallocManaged(&sum, n * sizeof(float)));
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < n; i++) {
			a[i] = (float)(i + round);
			b[i] = (float)(2 * i);
		}
		add<<<(n + 255) / 256, 256>>>(a, b, sum, n);
		CUDA(cudaGetLastError());
		CUDA(cudaDeviceSynchronize());
		for (int i = 0; i < n; i++)
			if (sum[i] != (float)(i + round) + (float)(2 * i))
				FAIL("round %d, element %d is %f", round, i, sum[i]);
		EXPECT(a[n - 1] == (float)(n - 1 + round));
	}
	CUDA(cudaFree(a));
	CUDA(cudaFree(b));
	CUDA(cudaFree(sum));
	return passed();
}
