// A function that is not there says its name, and nothing else breaks.
#include "check.h"

int main()
{
	cudaExternalMemory_t memory;
	cudaExternalMemoryHandleDesc description = {};
	int *data;
	CUDA(cudaMalloc(&data, 4));
	description.type = cudaExternalMemoryHandleTypeOpaqueFd;
	description.size = 4096;
	EXPECT_ERROR(cudaImportExternalMemory(&memory, &description), cudaErrorNotSupported);
	cudaGetLastError();
	EXPECT_ERROR(cudaImportExternalMemory(&memory, &description), cudaErrorNotSupported);
	cudaGetLastError();
	CUDA(cudaMemset(data, 0, 4));
	CUDA(cudaDeviceSynchronize());
	return passed();
}
