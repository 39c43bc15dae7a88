// One thread queues kernels and host functions without end while host functions change managed memory.
#include "../check.h"

struct box {
	long value[3000];
	long turns;
};

__global__ void add(box *b)
{
	for (int i = threadIdx.x; i < 3000; i += blockDim.x)
		b->value[i] += 1;
}

static void change(void *opaque)
{
	box *b = (box *)opaque;

	for (int i = 0; i < 3000; i++)
		b->value[i] = b->value[i] * 3 % 1000003;
	b->turns++;
}

int main()
{
	cudaStream_t stream;
	long wanted = 0;
	box *b;

	CUDA(cudaMallocManaged(&b, sizeof(*b)));
	CUDA(cudaStreamCreate(&stream));
	for (int round = 0; round < 100; round++) {
		// Behind the legacy stream's, too.
		cudaStream_t at = round % 3 ? stream : cudaStreamLegacy;

		add<<<1, 128, 0, at>>>(b);
		CUDA(cudaLaunchHostFunc(round % 2 ? stream : cudaStreamLegacy, change, b));
		add<<<1, 128, 0, at>>>(b);
		wanted = (wanted + 1) * 3 % 1000003 + 1;
	}
	CUDA(cudaDeviceSynchronize());
	EXPECT(b->turns == 100);
	for (int i = 0; i < 3000; i++)
		EXPECT(b->value[i] == wanted);
	return passed();
}
