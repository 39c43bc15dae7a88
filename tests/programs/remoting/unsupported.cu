// A function that is not there says its name, and nothing else breaks.
#include "check.h"

int main()
{
	int *data;
	CUDA(cudaMalloc(&data, 4));
	EXPECT_ERROR(cudaMallocManaged(&data, 4), cudaErrorNotSupported);
	cudaGetLastError();
	EXPECT_ERROR(cudaMallocManaged(&data, 8), cudaErrorNotSupported);
	cudaGetLastError();
	CUDA(cudaMemset(data, 0, 4));
	CUDA(cudaDeviceSynchronize());
	return passed();
}
