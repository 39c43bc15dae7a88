// Events order streams and measure time.
#include "check.h"

__global__ void write(int *to, int value)
{
	*to = value;
}

__global__ void copy(int *to, const int *from)
{
	*to = *from;
}

int main()
{
	int *data, result = 0;
	float milliseconds = -1;
	cudaStream_t first, second;
	cudaEvent_t begin, written, end;
	CUDA(cudaMalloc(&data, 2 * sizeof(int)));
	CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&written));
	CUDA(cudaEventCreate(&end));
	CUDA(cudaEventRecord(begin, first));
	write<<<1, 1, 0, first>>>(data, 42);
	CUDA(cudaEventRecord(written, first));
	CUDA(cudaStreamWaitEvent(second, written, 0));
	copy<<<1, 1, 0, second>>>(data + 1, data);
	CUDA(cudaEventRecord(end, second));
	CUDA(cudaEventSynchronize(end));
	CUDA(cudaEventQuery(end));
	CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
	EXPECT(milliseconds >= 0 && milliseconds < 60000);
	CUDA(cudaMemcpy(&result, data + 1, sizeof(int), cudaMemcpyDeviceToHost));
	EXPECT(result == 42);
	CUDA(cudaEventDestroy(end));
	EXPECT_ERROR(cudaEventRecord(end, second), cudaErrorInvalidResourceHandle);
	return passed();
}
