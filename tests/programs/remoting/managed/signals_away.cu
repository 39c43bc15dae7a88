// A timer's handler touches pages that the GPU had, in the midst of CUDA calls of the same thread.
#include "../check.h"

#include <csignal>
#include <sys/time.h>

enum { PAGES = 64, WORDS = PAGES * 1024 };

static volatile unsigned *shared;
static volatile sig_atomic_t touched = PAGES;

static void touch(int)
{
	if (touched < PAGES) {
		shared[touched * 1024] += 1;
		touched++;
	}
}

__global__ void add(unsigned *data, unsigned by)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	data[i] += by;
}

__global__ void work(volatile int *data, int times)
{
	for (int i = 0; i < times; i++)
		data[i % 32]++;
}

int main()
{
	const struct itimerval every = { { 0, 300 }, { 0, 300 } }, never = {};
	cudaStream_t own, other;
	unsigned *data;
	int *plain, *more, back[32];

	CUDA(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	CUDA(cudaMalloc(&plain, sizeof(back)));
	CUDA(cudaMallocManaged(&data, WORDS * sizeof(*data)));
	CUDA(cudaMemset(data, 0, WORDS * sizeof(*data)));
	CUDA(cudaDeviceSynchronize());
	CUDA(cudaStreamAttachMemAsync(own, data, 0, cudaMemAttachSingle));
	CUDA(cudaStreamSynchronize(own));
	shared = data;
	signal(SIGALRM, touch);
	for (unsigned round = 1; round <= 10; round++) {
		add<<<WORDS / 256, 256, 0, own>>>(data, 10);
		CUDA(cudaStreamSynchronize(own));
		touched = 0;
		EXPECT(setitimer(ITIMER_REAL, &every, nullptr) == 0);
		while (touched < PAGES) {
			work<<<1, 1, 0, other>>>(plain, 3000);
			CUDA(cudaMallocManaged(&more, 50000));
			CUDA(cudaStreamSynchronize(other));
			CUDA(cudaMemcpyAsync(back, plain, sizeof(back), cudaMemcpyDeviceToHost, other));
			CUDA(cudaFree(more));
		}
		EXPECT(setitimer(ITIMER_REAL, &never, nullptr) == 0);
		for (int i = 0; i < WORDS; i++)
			if (data[i] != 10 * round + (i % 1024 ? 0 : round))
				FAIL("round %u: word %d holds %u", round, i, data[i]);
	}
	return passed();
}
