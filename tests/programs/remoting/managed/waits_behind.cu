// A stream whose kernels are over, and which waits for another stream: its memory is the processor's.
#include "../check.h"

#include <semaphore.h>

__global__ void fill(int *data, int n, int what)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		data[i] = what + i;
}

static void CUDART_CB wait(void *opaque)
{
	while (sem_wait((sem_t *)opaque))
		;
}

int main()
{
	const int n = 10000;
	cudaStream_t stream, other;
	cudaEvent_t done, later;
	sem_t go_on;
	int *data;

	EXPECT(sem_init(&go_on, 0, 0) == 0);
	CUDA(cudaMallocManaged(&data, n * sizeof(int)));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	CUDA(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
	CUDA(cudaEventCreateWithFlags(&later, cudaEventDisableTiming));
	for (int round = 0; round < 3; round++) {
		CUDA(cudaLaunchHostFunc(other, wait, &go_on));
		CUDA(cudaEventRecord(later, other));
		fill<<<1, 256, 0, stream>>>(data, n, round);
		CUDA(cudaGetLastError());
		CUDA(cudaEventRecord(done, stream));
		CUDA(cudaStreamWaitEvent(stream, later, 0));
		CUDA(cudaEventSynchronize(done));
		for (int i = 0; i < n; i++)
			EXPECT(data[i] == round + i);
		EXPECT(sem_post(&go_on) == 0);
		CUDA(cudaDeviceSynchronize());
	}
	return passed();
}
