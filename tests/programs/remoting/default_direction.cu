// cudaMemcpyDefault tells host from device by address, and attributes agree.
#include "check.h"

int main()
{
	int host = 17, back = 0, *first, *second, *pinned;
	cudaPointerAttributes attributes;
	CUDA(cudaMalloc(&first, 4096));
	CUDA(cudaMalloc(&second, 4096));
	CUDA(cudaMallocHost(&pinned, 4096));
	CUDA(cudaMemcpy(first, &host, sizeof(int), cudaMemcpyDefault));
	CUDA(cudaMemcpy(second, first, sizeof(int), cudaMemcpyDefault));
	CUDA(cudaMemcpy(pinned, second, sizeof(int), cudaMemcpyDefault));
	CUDA(cudaMemcpy(&back, pinned, sizeof(int), cudaMemcpyDefault));
	EXPECT(*pinned == 17 && back == 17);
	CUDA(cudaPointerGetAttributes(&attributes, (char *)first + 100));
	EXPECT(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
	EXPECT(attributes.devicePointer == (char *)first + 100);
	CUDA(cudaPointerGetAttributes(&attributes, pinned));
	EXPECT(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == pinned);
	CUDA(cudaPointerGetAttributes(&attributes, &host));
	EXPECT(attributes.type == cudaMemoryTypeUnregistered);
	CUDA(cudaHostRegister(&host, sizeof host, 0));
	CUDA(cudaPointerGetAttributes(&attributes, &host));
	EXPECT(attributes.type == cudaMemoryTypeHost);
	CUDA(cudaHostUnregister(&host));
	return passed();
}
