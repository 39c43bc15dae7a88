// Arguments at the edge of what is allowed, refused or accepted by the call itself.
#include "check.h"

#include <cstring>

int main()
{
	unsigned char *device, *pinned, host[64] = { 1 };

	CUDA(cudaMalloc(&device, 4096));
	CUDA(cudaMallocHost(&pinned, 4096));
	/* Spans whose size does not fit 64 bits. */
	EXPECT_ERROR(cudaMemset2D(device, 16, 0, 16, (1ull << 60) + 1), cudaErrorInvalidValue);
	EXPECT_ERROR(cudaMemset2D(device, 1ull << 63, 0, 16, 3), cudaErrorInvalidValue);
	EXPECT_ERROR(cudaMemcpy2D(device, 1ull << 63, device, 1ull << 63, 16, 3,
				  cudaMemcpyDeviceToDevice),
		     cudaErrorInvalidValue);
	/* A fill of pinned memory. */
	CUDA(cudaMemset(pinned, 0x5a, 4096));
	CUDA(cudaDeviceSynchronize());
	EXPECT(pinned[0] == 0x5a && pinned[4095] == 0x5a);
	EXPECT_ERROR(cudaMemset(pinned + 1, 0, 4096), cudaErrorInvalidValue);
	/* Nothing to free; nothing to pin. */
	CUDA(cudaFreeHost(nullptr));
	EXPECT_ERROR(cudaHostRegister(device, 16, 0), cudaErrorInvalidValue);
	CUDA(cudaGetLastError() == cudaErrorInvalidValue ? cudaSuccess : cudaErrorUnknown);
	CUDA(cudaMemcpy(device, host, sizeof(host), cudaMemcpyHostToDevice));
	return passed();
}
