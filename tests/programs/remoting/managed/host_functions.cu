// A host function between two kernels, all queued at once, reads and changes managed memory.
#include "../check.h"

struct box {
	int value[5000];
	int calls;
};

__global__ void add(box *b, int by)
{
	for (int i = threadIdx.x; i < 5000; i += blockDim.x)
		b->value[i] += by;
}

static int seen[16];

static void between(void *opaque)
{
	box *b = (box *)opaque;

	seen[b->calls++] = b->value[4999];
	for (int i = 0; i < 5000; i++)
		b->value[i] *= 2;
}

int main()
{
	box *b;
	cudaStream_t stream;
	int wanted = 1;

	CUDA(cudaMallocManaged(&b, sizeof(*b)));
	CUDA(cudaStreamCreate(&stream));
	for (int i = 0; i < 5000; i++)
		b->value[i] = 1;
	for (int round = 0; round < 8; round++) {
		add<<<1, 128, 0, stream>>>(b, 3);
		CUDA(cudaLaunchHostFunc(stream, between, b));
		add<<<1, 128, 0, stream>>>(b, 1);
	}
	CUDA(cudaStreamSynchronize(stream));
	for (int round = 0; round < 8; round++) {
		EXPECT(seen[round] == wanted + 3);
		wanted = (wanted + 3) * 2 + 1;
	}
	EXPECT(b->calls == 8);
	for (int i = 0; i < 5000; i++)
		EXPECT(b->value[i] == wanted);
	return passed();
}
