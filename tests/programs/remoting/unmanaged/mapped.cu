// Pinned memory may be asked for as mapped; that the device can't map it is told when its address is asked for.
#include "../check.h"

__global__ void add(int *data)
{
	data[threadIdx.x] += 1;
}

int main()
{
	int can, registered, *host, *device, *inside;

	CUDA(cudaDeviceGetAttribute(&can, cudaDevAttrCanMapHostMemory, 0));
	CUDA(cudaDeviceGetAttribute(&registered, cudaDevAttrCanUseHostPointerForRegisteredMem, 0));
	EXPECT(can == 0 && registered == 0);
	CUDA(cudaHostAlloc(&host, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
	for (int i = 0; i < 2; i++) {
		EXPECT_ERROR(cudaHostGetDevicePointer(&inside, host, 0), cudaErrorNotSupported);
		cudaGetLastError();
	}
	// For copies it is as good as any other.
	CUDA(cudaMalloc(&device, 4096));
	for (int i = 0; i < 1024; i++)
		host[i] = i;
	CUDA(cudaMemcpyAsync(device, host, 4096, cudaMemcpyHostToDevice));
	add<<<1, 1024>>>(device);
	CUDA(cudaMemcpyAsync(host, device, 4096, cudaMemcpyDeviceToHost));
	CUDA(cudaDeviceSynchronize());
	for (int i = 0; i < 1024; i++)
		EXPECT(host[i] == i + 1);
	// A kernel that is given its address all the same fails loudly.
	add<<<1, 1>>>(host);
	EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
	return passed();
}
