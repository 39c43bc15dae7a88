// A timer of 1 kHz interrupts copies, launches and waits; calls of the system are not restarted.
#include "check.h"

#include <csignal>
#include <sys/time.h>
#include <vector>

static volatile std::sig_atomic_t ticks;

static void tick(int)
{
	ticks = ticks + 1;
}

__global__ void add(int *data, int n, int what)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		data[i] += what;
}

static void every_millisecond(bool on)
{
	struct itimerval timer = {};

	timer.it_interval.tv_usec = timer.it_value.tv_usec = on ? 1000 : 0;
	EXPECT(setitimer(ITIMER_REAL, &timer, nullptr) == 0);
}

int main()
{
	const int n = 1 << 20;
	std::vector<int> here(n), back(n);
	struct sigaction action = {};
	int *device, *pinned, *managed;
	cudaStream_t stream;

	action.sa_handler = tick; // and no SA_RESTART
	EXPECT(sigaction(SIGALRM, &action, nullptr) == 0);
	// Also while the connection is opened.
	every_millisecond(true);
	CUDA(cudaMalloc(&device, n * sizeof(int)));
	CUDA(cudaMallocHost(&pinned, n * sizeof(int)));
	CUDA(cudaMallocManaged(&managed, n * sizeof(int)));
	CUDA(cudaStreamCreate(&stream));
	for (int round = 0; round < 5 || ticks < 200; round++) {
		for (int i = 0; i < n; i++)
			here[i] = pinned[i] = managed[i] = i * 3 + round;
		CUDA(cudaMemcpy(device, here.data(), n * sizeof(int), cudaMemcpyHostToDevice));
		add<<<n / 256, 256>>>(device, n, 5);
		CUDA(cudaMemcpy(back.data(), device, n * sizeof(int), cudaMemcpyDeviceToHost));
		CUDA(cudaMemcpyAsync(device, pinned, n * sizeof(int), cudaMemcpyHostToDevice, stream));
		for (int i = 0; i < 1000; i++)
			add<<<1, 32, 0, stream>>>(device, 32, 1);
		CUDA(cudaMemcpyAsync(pinned, device, n * sizeof(int), cudaMemcpyDeviceToHost, stream));
		add<<<n / 256, 256>>>(managed, n, 7);
		CUDA(cudaGetLastError());
		CUDA(cudaDeviceSynchronize());
		for (int i = 0; i < n; i++) {
			EXPECT(back[i] == i * 3 + round + 5);
			EXPECT(pinned[i] == i * 3 + round + (i < 32 ? 1000 : 0));
			EXPECT(managed[i] == i * 3 + round + 7);
		}
	}
	every_millisecond(false);
	return passed();
}
