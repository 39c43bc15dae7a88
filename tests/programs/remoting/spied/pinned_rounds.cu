// Pinned memory behind a host function, copied again and again: each copy reads what
// the host function has just written.
#include "../check.h"

static unsigned *source;
static const int count = 50000;

static void write_next(void *value)
{
	for (int i = 0; i < count; i++)
		source[i] = (unsigned)(size_t)value + i;
}

int main()
{
	unsigned *device, *host = new unsigned[count];
	cudaStream_t stream;
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMalloc(&device, count * sizeof(unsigned)));
	CUDA(cudaMallocHost(&source, count * sizeof(unsigned)));
	for (unsigned round = 0; round < 20; round++) {
		CUDA(cudaLaunchHostFunc(stream, write_next, (void *)(size_t)(round * 1000)));
		CUDA(cudaMemcpyAsync(device, source, count * sizeof(unsigned), cudaMemcpyHostToDevice, stream));
		CUDA(cudaStreamSynchronize(stream));
		CUDA(cudaMemcpy(host, device, count * sizeof(unsigned), cudaMemcpyDeviceToHost));
		for (int i = 0; i < count; i++)
			if (host[i] != round * 1000 + i)
				FAIL("round %u, element %d is %u", round, i, host[i]);
	}
	return passed();
}
