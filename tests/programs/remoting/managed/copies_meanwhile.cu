// Copies of pinned memory, which never wait at the call, are made while a host function is about to use managed memory.
#include "../check.h"

#include <semaphore.h>

#include <cstring>

struct box {
	int value[5000];
};

__global__ void add(box *b)
{
	for (int i = threadIdx.x; i < 5000; i += blockDim.x)
		b->value[i] += 1;
}

static sem_t go_on;

static void CUDART_CB change(void *opaque)
{
	box *b = (box *)opaque;

	while (sem_wait(&go_on))
		;
	for (int i = 0; i < 5000; i++)
		b->value[i] *= 2;
}

int main()
{
	const size_t bytes = 4 << 20;
	const int pieces = 12;
	cudaStream_t stream, other;
	char *to, *from, *back, *device;
	int wanted = 0;
	box *b;

	EXPECT(sem_init(&go_on, 0, 0) == 0);
	CUDA(cudaMallocManaged(&b, sizeof(*b)));
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	CUDA(cudaMalloc(&to, bytes));
	CUDA(cudaMalloc(&device, pieces << 20));
	CUDA(cudaMallocHost(&from, bytes));
	CUDA(cudaMallocHost(&back, pieces << 20));
	for (int round = 1; round < 4; round++) {
		memset(from, round, bytes);
		CUDA(cudaMemset(device, 10 * round, pieces << 20));
		CUDA(cudaDeviceSynchronize());
		add<<<1, 128, 0, stream>>>(b);
		CUDA(cudaLaunchHostFunc(stream, change, b));
		// More than a server has buffers for before it must ask its driver for another.
		CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, other));
		for (int i = 0; i < pieces; i++)
			CUDA(cudaMemcpyAsync(back + (i << 20), device + (i << 20), 1 << 20, cudaMemcpyDeviceToHost, other));
		add<<<1, 128, 0, stream>>>(b);
		EXPECT(sem_post(&go_on) == 0);
		CUDA(cudaDeviceSynchronize());
		wanted = (wanted + 1) * 2 + 1;
		for (int i = 0; i < 5000; i++)
			EXPECT(b->value[i] == wanted);
		for (size_t i = 0; i < (size_t)pieces << 20; i++)
			EXPECT(back[i] == 10 * round);
		CUDA(cudaMemcpy(back, to, bytes, cudaMemcpyDeviceToHost));
		EXPECT(memcmp(back, from, bytes) == 0);
	}
	return passed();
}
