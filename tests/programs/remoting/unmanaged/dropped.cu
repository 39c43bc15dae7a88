// Managed pages that the program drops (madvise) are as memory of its own, and nothing waits for them for good.
#include "../check.h"

#include <sys/mman.h>

__global__ void add(int *data, int n, int what)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		data[i] += what;
}

int main()
{
	const int n = 1 << 20, page = 4096 / sizeof(int);
	int *data;

	CUDA(cudaMallocManaged(&data, n * sizeof(int)));
	add<<<1, 256>>>(data, n, 1);
	CUDA(cudaDeviceSynchronize());
	/* Written: gone, here and for the kernel that comes next. */
	for (int i = 0; i < 64 * page; i++)
		data[i] = 5;
	EXPECT(madvise(data, 32 * 4096, MADV_DONTNEED) == 0);
	EXPECT(data[0] == 0 && data[page] == 0);
	add<<<1, 256>>>(data, n, 1);
	CUDA(cudaDeviceSynchronize());
	EXPECT(data[0] == 1 && data[31 * page] == 1 && data[32 * page] == 6);
	/* Only read: what the GPU has, or zero. */
	EXPECT(data[n / 2] == 2);
	EXPECT(madvise(data, n * sizeof(int), MADV_DONTNEED) == 0);
	EXPECT(data[n / 2] == 2 || data[n / 2] == 0);
	data[n / 2]++;
	EXPECT(data[n / 2 + 1] == 2 || data[n / 2 + 1] == 0);
	CUDA(cudaFree(data));
	std::printf("ok\n");
}
