// The call that reports an error is the one that reports it with a local GPU.
#include "check.h"

__global__ void nothing()
{
}

__global__ void __launch_bounds__(64) narrow(int *data)
{
	data[threadIdx.x] = 1;
}

int main()
{
	int *device, host = 0;
	size_t available, total;
	CUDA(cudaMalloc(&device, 1024));

	nothing<<<1, 4096>>>();
	EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
	nothing<<<0, 1>>>();
	EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
	nothing<<<1, 1, 1 << 20>>>();
	EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
	nothing<<<dim3(1, 70000), 1>>>();
	EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
	narrow<<<1, 65>>>(device);
	EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
	CUDA(cudaDeviceSynchronize());

	EXPECT_ERROR(cudaMemcpy(device, &host, 2048, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
	EXPECT_ERROR(cudaMemcpy(&host, (char *)device + 1022, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
	EXPECT_ERROR(cudaMemset(device, 0, 1025), cudaErrorInvalidValue);
	EXPECT_ERROR(cudaFree((char *)device + 4), cudaErrorInvalidValue);
	EXPECT_ERROR(cudaFree(&host), cudaErrorInvalidValue);
	CUDA(cudaFree(nullptr));
	EXPECT_ERROR(cudaFreeHost(&host), cudaErrorInvalidValue);
	EXPECT_ERROR(cudaStreamSynchronize((cudaStream_t)0x1234560), cudaErrorInvalidResourceHandle);
	EXPECT_ERROR(cudaSetDevice(99), cudaErrorInvalidDevice);
	CUDA(cudaMemGetInfo(&available, &total));
	EXPECT(available <= total && total > 0);
	void *large = nullptr;
	EXPECT_ERROR(cudaMalloc(&large, total * 2), cudaErrorMemoryAllocation);
	EXPECT_ERROR(cudaMalloc(&large, ~(size_t)0), cudaErrorMemoryAllocation);
	cudaGetLastError();

	// None of these has harmed the context.
	narrow<<<1, 64>>>(device);
	CUDA(cudaGetLastError());
	CUDA(cudaDeviceSynchronize());
	return passed();
}
