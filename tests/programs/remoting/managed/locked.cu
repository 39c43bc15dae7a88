// A program that locks its memory, before and after it allocates, as those with deadlines do.
#include "../check.h"

#include <sys/mman.h>

__global__ void add(int *data, int n)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		data[i]++;
}

int main()
{
	const int n = 1 << 18;
	int *data[2];

	CUDA(cudaMallocManaged(&data[0], n * sizeof(int)));
	add<<<1, 256>>>(data[0], n);
	CUDA(cudaDeviceSynchronize());
	data[0][7] += 10;
	EXPECT(mlock(data[0], n * sizeof(int)) == 0);
	EXPECT(mlockall(MCL_FUTURE) == 0);
	CUDA(cudaMallocManaged(&data[1], n * sizeof(int)));
	for (int round = 0; round < 3; round++) {
		data[0][n - 1]++;
		for (int *each : data)
			add<<<1, 256>>>(each, n);
		CUDA(cudaDeviceSynchronize());
	}
	EXPECT(data[0][7] == 14 && data[0][n - 1] == 7 && data[0][0] == 4 && data[1][n / 2] == 3);
	std::printf("ok\n");
}
