// A timer's handler counts in managed memory that is attached to the processor, in the midst of CUDA calls.
#include "../check.h"

#include <csignal>
#include <sys/time.h>

static volatile long *ticks;

static void tick(int)
{
	for (int i = 0; i < 4096 * 4; i += 512)
		ticks[i]++;
}

__global__ void add(int *data, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		data[i]++;
}

int main()
{
	const int n = 20000;
	const struct itimerval every = { { 0, 1000 }, { 0, 1000 } }, never = {};
	int *data, *other;
	long *counts;

	CUDA(cudaMallocManaged(&counts, 4096 * 4 * sizeof(long), cudaMemAttachHost));
	CUDA(cudaMallocManaged(&data, n * sizeof(int)));
	ticks = counts;
	signal(SIGALRM, tick);
	EXPECT(setitimer(ITIMER_REAL, &every, nullptr) == 0);
	for (int round = 1; round <= 300; round++) {
		add<<<(n + 127) / 128, 128>>>(data, n);
		CUDA(cudaMallocManaged(&other, 100000));
		other[0] = 1;
		CUDA(cudaDeviceSynchronize());
		EXPECT(data[round] == round && data[n - 1] == round && other[0] == 1);
		CUDA(cudaFree(other));
	}
	EXPECT(setitimer(ITIMER_REAL, &never, nullptr) == 0);
	EXPECT(counts[512] == counts[1024]);
	return passed();
}
