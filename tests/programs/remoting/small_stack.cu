// A thread with the smallest stack there is launches, copies and synchronises.
#include "check.h"

#include <climits>
#include <pthread.h>
#include <unistd.h>

static int *device;

static __global__ void add(int *value, int n)
{
	*value += n;
}

static void *work(void *)
{
	int back = 0;

	CUDA(cudaMemset(device, 0, sizeof(int)));
	add<<<1, 1>>>(device, 7);
	CUDA(cudaGetLastError());
	CUDA(cudaMemcpy(&back, device, sizeof(int), cudaMemcpyDeviceToHost));
	EXPECT(back == 7);
	return nullptr;
}

int main()
{
	pthread_attr_t small;
	pthread_t thread;

	CUDA(cudaMalloc(&device, sizeof(int)));
	add<<<1, 1>>>(device, 1);
	CUDA(cudaDeviceSynchronize());
	pthread_attr_init(&small);
	EXPECT(pthread_attr_setstacksize(&small, 16384 + 4096) == 0);
	EXPECT(pthread_create(&thread, &small, work, nullptr) == 0);
	EXPECT(pthread_join(thread, nullptr) == 0);
	return passed();
}
