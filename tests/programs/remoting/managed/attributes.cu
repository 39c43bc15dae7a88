// What CUDA says of a managed pointer, and of a device that has such memory.
#include "../check.h"

__managed__ int variable = 3;

static void described(void *at)
{
	cudaPointerAttributes known;

	CUDA(cudaPointerGetAttributes(&known, at));
	EXPECT(known.type == cudaMemoryTypeManaged);
	EXPECT(known.devicePointer == at && known.hostPointer == at && known.device == 0);
}

int main()
{
	int managed, concurrent, pageable;
	char *data, *other;

	CUDA(cudaDeviceGetAttribute(&managed, cudaDevAttrManagedMemory, 0));
	CUDA(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
	CUDA(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, 0));
	EXPECT(managed == 1);
	CUDA(cudaMallocManaged(&data, 10000));
	CUDA(cudaMallocManaged(&other, 10000));
	described(data);
	described(data + 9999);
	described(other);
	described(&variable);
	cudaPointerAttributes known;
	CUDA(cudaPointerGetAttributes(&known, &managed));
	EXPECT(known.type == cudaMemoryTypeUnregistered);
	void *plain;
	CUDA(cudaMalloc(&plain, 100));
	CUDA(cudaPointerGetAttributes(&known, plain));
	EXPECT(known.type == cudaMemoryTypeDevice && !known.hostPointer);
	EXPECT(variable == 3);
	return passed();
}
