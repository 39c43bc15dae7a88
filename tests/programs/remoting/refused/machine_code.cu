// Machine code alone, which a software GPU does not execute: the launches fail, and what says why is on stderr.
// flags: -gencode arch=compute_80,code=sm_80
#include "../check.h"

__global__ void fill(int *data)
{
	data[threadIdx.x] = 7;
}

int main()
{
	int *data = nullptr;

	for (int i = 0; i < 3; i++) {
		cudaMalloc(&data, 128);
		fill<<<1, 32>>>(data);
		EXPECT_ERROR(cudaGetLastError(), cudaErrorNoKernelImageForDevice);
	}
	std::printf("ok\n");
}
