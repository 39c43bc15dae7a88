// What the processor wrote before the first launch is seen by all launches, whichever their stream.
#include "../check.h"

__global__ void sum(const unsigned *data, size_t n, unsigned long long *out)
{
	unsigned long long own = 0;

	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x)
		own += data[i];
	atomicAdd(out, own);
}

int main()
{
	const size_t n = 1 << 21;
	const int streams = 6;
	cudaStream_t stream[streams];
	unsigned *data;
	unsigned long long *out, wanted = 0;

	CUDA(cudaMallocManaged(&data, n * sizeof(unsigned)));
	CUDA(cudaMallocManaged(&out, streams * sizeof(*out)));
	for (int s = 0; s < streams; s++)
		CUDA(cudaStreamCreateWithFlags(&stream[s], cudaStreamNonBlocking));
	for (unsigned round = 1; round < 4; round++) {
		wanted = 0;
		for (size_t i = 0; i < n; i++) {
			data[i] = (unsigned)i * round;
			wanted += data[i];
		}
		for (int s = 0; s < streams; s++)
			out[s] = 0;
		for (int s = 0; s < streams; s++)
			sum<<<16, 128, 0, stream[s]>>>(data, n, &out[s]);
		CUDA(cudaDeviceSynchronize());
		for (int s = 0; s < streams; s++)
			if (out[s] != wanted)
				FAIL("round %u, stream %d: %llu, not %llu", round, s, out[s], wanted);
	}
	return passed();
}
