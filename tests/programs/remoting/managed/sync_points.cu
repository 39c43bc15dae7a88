// Every call after which the processor may touch what kernels wrote.
#include "../check.h"

__global__ void count(volatile int *data, int n, int spin)
{
	long waste = 0;

	for (int i = 0; i < spin; i++)
		waste += data[i % n] >= 0;
	if (waste >= 0)
		for (int i = 0; i < n; i++)
			data[i] = data[i] + 1;
}

int main()
{
	const int n = 3000;
	int *data, *plain, wanted = 0, back;
	cudaStream_t stream, other, gone;
	cudaEvent_t event;

	CUDA(cudaMallocManaged(&data, n * sizeof(int)));
	CUDA(cudaMalloc(&plain, sizeof(int)));
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	CUDA(cudaEventCreate(&event));
#define CHECKED(what)                                                                            \
	do {                                                                                     \
		wanted++;                                                                        \
		for (int i = 0; i < n; i++)                                                      \
			if (data[i] != wanted)                                                   \
				FAIL("behind %s: %d holds %d, not %d", what, i, data[i], wanted); \
	} while (0)
	for (int round = 0; round < 5; round++) {
		count<<<1, 1>>>(data, n, 20000);
		CUDA(cudaDeviceSynchronize());
		CHECKED("cudaDeviceSynchronize");
		count<<<1, 1, 0, stream>>>(data, n, 20000);
		CUDA(cudaStreamSynchronize(stream));
		CHECKED("cudaStreamSynchronize");
		count<<<1, 1, 0, other>>>(data, n, 20000);
		CUDA(cudaEventRecord(event, other));
		CUDA(cudaEventSynchronize(event));
		CHECKED("cudaEventSynchronize");
		count<<<1, 1, 0, other>>>(data, n, 20000);
		while (cudaStreamQuery(other) == cudaErrorNotReady)
			;
		CHECKED("cudaStreamQuery");
		count<<<1, 1, 0, stream>>>(data, n, 20000);
		CUDA(cudaEventRecord(event, stream));
		while (cudaEventQuery(event) == cudaErrorNotReady)
			;
		CHECKED("cudaEventQuery");
		count<<<1, 1>>>(data, n, 20000);
		CUDA(cudaMemcpy(&back, plain, sizeof(int), cudaMemcpyDeviceToHost));
		CHECKED("cudaMemcpy");
		// One stream behind another: to wait for the last is enough.
		count<<<1, 1, 0, other>>>(data, n, 20000);
		CUDA(cudaEventRecord(event, other));
		CUDA(cudaStreamWaitEvent(stream, event, 0));
		count<<<1, 1, 0, stream>>>(data, n, 1);
		wanted++;
		CUDA(cudaStreamSynchronize(stream));
		CHECKED("cudaStreamWaitEvent");
		// Two streams, waited for one by one.
		count<<<1, 1, 0, other>>>(data, n / 2, 20000);
		count<<<1, 1, 0, stream>>>(data + n / 2, n - n / 2, 1);
		CUDA(cudaStreamSynchronize(stream));
		CUDA(cudaStreamSynchronize(other));
		CHECKED("two streams");
		// A stream that was destroyed while it works.
		CUDA(cudaStreamCreate(&gone));
		count<<<1, 1, 0, gone>>>(data, n, 20000);
		CUDA(cudaStreamDestroy(gone));
		CUDA(cudaDeviceSynchronize());
		CHECKED("cudaStreamDestroy");
	}
	return passed();
}
