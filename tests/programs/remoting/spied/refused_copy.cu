// A copy to the host that the driver refuses is over: pinned memory can be given back
// without waiting for it.  (The driver below refuses copies of that size.)
#include "../check.h"

int main()
{
	const size_t bytes = 12344;
	char *host, *device;
	CUDA(cudaMalloc(&device, bytes));
	CUDA(cudaMallocHost(&host, bytes));
	CUDA(cudaMemset(device, 7, bytes));
	CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost));
	EXPECT_ERROR(cudaStreamSynchronize(0), cudaErrorInvalidValue);
	CUDA(cudaFreeHost(host));
	CUDA(cudaMallocHost(&host, bytes));
	CUDA(cudaMemcpyAsync(host, device, 1000, cudaMemcpyDeviceToHost));
	CUDA(cudaStreamSynchronize(0));
	for (int i = 0; i < 1000; i++)
		EXPECT(host[i] == 7);
	return passed();
}
