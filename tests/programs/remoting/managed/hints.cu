// Prefetching and advice change where memory is, never what it holds; both can be asked about.
#include "../check.h"

__global__ void add(int *data, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		data[i] += 1;
}

int main()
{
	const int n = 300000;
	const size_t bytes = n * sizeof(int);
	cudaMemLocation gpu = {}, here = {};
	cudaStream_t stream;
	int *data, said;

	gpu.type = cudaMemLocationTypeDevice;
	here.type = cudaMemLocationTypeHost;
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMallocManaged(&data, bytes));
	CUDA(cudaMemRangeGetAttribute(&said, sizeof(said), cudaMemRangeAttributeReadMostly, data, bytes));
	EXPECT(said == 0);
	CUDA(cudaMemRangeGetAttribute(&said, sizeof(said), cudaMemRangeAttributePreferredLocation, data, bytes));
	EXPECT(said == cudaInvalidDeviceId);
	for (int i = 0; i < n; i++)
		data[i] = i;
	CUDA(cudaMemAdvise(data, bytes, cudaMemAdviseSetPreferredLocation, gpu));
	CUDA(cudaMemAdvise(data, bytes, cudaMemAdviseSetAccessedBy, here));
	CUDA(cudaMemAdvise(data, bytes, cudaMemAdviseSetReadMostly, gpu));
	CUDA(cudaMemRangeGetAttribute(&said, sizeof(said), cudaMemRangeAttributePreferredLocation, data, bytes));
	EXPECT(said == 0);
	CUDA(cudaMemRangeGetAttribute(&said, sizeof(said), cudaMemRangeAttributeReadMostly, data, bytes));
	EXPECT(said == 1);
	CUDA(cudaMemAdvise(data, bytes, cudaMemAdviseUnsetReadMostly, gpu));
	CUDA(cudaMemRangeGetAttribute(&said, sizeof(said), cudaMemRangeAttributeReadMostly, data, bytes));
	EXPECT(said == 0);
	CUDA(cudaMemPrefetchAsync(data, bytes, gpu, 0, stream));
	add<<<(n + 127) / 128, 128, 0, stream>>>(data, n);
	CUDA(cudaMemPrefetchAsync(data, bytes, here, 0, stream));
	CUDA(cudaStreamSynchronize(stream));
	for (int i = 0; i < n; i++)
		EXPECT(data[i] == i + 1);
	CUDA(cudaMemRangeGetAttribute(&said, sizeof(said), cudaMemRangeAttributeLastPrefetchLocation, data, bytes));
	EXPECT(said == cudaCpuDeviceId);
	// Prefetched, then written again before the launch.
	data[5] = 100;
	CUDA(cudaMemPrefetchAsync(data, bytes, gpu, 0, stream));
	CUDA(cudaStreamSynchronize(stream));
	data[6] = 200;
	add<<<(n + 127) / 128, 128, 0, stream>>>(data, n);
	CUDA(cudaStreamSynchronize(stream));
	EXPECT(data[4] == 6 && data[5] == 101 && data[6] == 201 && data[n - 1] == n + 1);
	// What is no managed memory has no place of its own.
	int *plain;
	CUDA(cudaMalloc(&plain, 4096));
	EXPECT_ERROR(cudaMemPrefetchAsync(plain, 4096, gpu, 0, stream), cudaErrorInvalidValue);
	cudaGetLastError();
	CUDA(cudaMemset(plain, 0, 4096));
	return passed();
}
