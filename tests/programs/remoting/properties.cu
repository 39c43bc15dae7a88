// Device properties, attributes, occupancy and memory as the runtime asks for them.
#include "check.h"

#include <cstring>

__global__ void kernel(float *data)
{
	__shared__ float shared[256];
	shared[threadIdx.x] = data[threadIdx.x];
	__syncthreads();
	data[threadIdx.x] = shared[255 - threadIdx.x];
}

int main()
{
	cudaDeviceProp properties;
	cudaFuncAttributes attributes;
	int count = 0, blocks = 0, grid = 0, block = 0, value = -1, driver = 0, device = -1;
	size_t before, after, total;
	char bus[32];
	void *memory;
	CUDA(cudaGetDeviceCount(&count));
	EXPECT(count >= 1);
	CUDA(cudaGetDeviceProperties(&properties, 0));
	EXPECT(std::strlen(properties.name) > 0 && properties.warpSize == 32);
	EXPECT(properties.maxThreadsPerBlock == 1024 && properties.multiProcessorCount > 0);
	// No GPU reaches memory of this machine that it does not know.
	EXPECT(!properties.pageableMemoryAccess);
	EXPECT(properties.managedMemory && !properties.concurrentManagedAccess);
	CUDA(cudaDriverGetVersion(&driver));
	EXPECT(driver >= 12000);
	CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
	CUDA(cudaDeviceGetByPCIBusId(&device, bus));
	EXPECT(device == 0);
	CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrMaxBlockDimX, 0));
	EXPECT(value == 1024);
	CUDA(cudaFuncGetAttributes(&attributes, kernel));
	EXPECT(attributes.sharedSizeBytes == 1024 && attributes.maxThreadsPerBlock >= 256);
	CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 0));
	EXPECT(blocks >= 1);
	CUDA(cudaOccupancyMaxPotentialBlockSize(&grid, &block, kernel, 0, 0));
	EXPECT(grid >= properties.multiProcessorCount && block >= 32);
	CUDA(cudaMemGetInfo(&before, &total));
	CUDA(cudaMalloc(&memory, 64 << 20));
	CUDA(cudaMemGetInfo(&after, &total));
	EXPECT(before - after >= 64u << 20);
	CUDA(cudaFree(memory));
	CUDA(cudaMemGetInfo(&after, &total));
	EXPECT(after == before);
	return passed();
}
