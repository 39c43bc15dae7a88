// Where there can be no managed memory the attribute says so, and every call for it is refused.
#include "../check.h"

int main()
{
	cudaStream_t stream;
	int managed, *data;

	CUDA(cudaDeviceGetAttribute(&managed, cudaDevAttrManagedMemory, 0));
	EXPECT(managed == 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_ERROR(cudaMallocManaged(&data, 4096), cudaErrorNotSupported);
		cudaGetLastError();
	}
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMalloc(&data, 4096));
	EXPECT_ERROR(cudaStreamAttachMemAsync(stream, data), cudaErrorNotSupported);
	cudaGetLastError();
	CUDA(cudaMemset(data, 0, 4096));
	CUDA(cudaDeviceSynchronize());
	return passed();
}
