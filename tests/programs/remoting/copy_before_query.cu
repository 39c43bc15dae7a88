// When a query says that an event has happened, the bytes copied before it are there.
#include "check.h"

int main()
{
	const int count = 1 << 18;
	int *device, *host;
	cudaEvent_t event;
	cudaStream_t stream;
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	CUDA(cudaMalloc(&device, count * sizeof(int)));
	CUDA(cudaMallocHost(&host, count * sizeof(int)));
	for (int round = 1; round <= 20; round++) {
		CUDA(cudaMemsetAsync(device, round, count * sizeof(int), stream));
		CUDA(cudaMemcpyAsync(host, device, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
		CUDA(cudaEventRecord(event, stream));
		cudaError_t state;
		while ((state = cudaEventQuery(event)) == cudaErrorNotReady)
			;
		CUDA(state);
		if (host[0] != round * 0x01010101 || host[count - 1] != round * 0x01010101)
			FAIL("round %d: %x %x", round, host[0], host[count - 1]);
	}
	return passed();
}
