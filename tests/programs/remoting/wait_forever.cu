// Waits in the device until it is ended from outside, in as many threads as told: says "waiting" first.
#include "check.h"

#include <cstdlib>
#include <thread>
#include <unistd.h>

static void never(void *)
{
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	int *data;
	CUDA(cudaMalloc(&data, 4096));
	CUDA(cudaLaunchHostFunc(nullptr, never, nullptr));
	std::printf("waiting\n");
	std::fflush(stdout);
	for (int left = argc > 1 ? std::atoi(argv[1]) : 1; left > 1; left--)
		std::thread([] { cudaDeviceSynchronize(); }).detach();
	const cudaError_t error = cudaDeviceSynchronize();
	std::printf("%s\n", cudaGetErrorName(error));
	return error == cudaSuccess ? 0 : 3;
}
