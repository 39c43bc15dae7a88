// Waits in the device until it is ended from outside: says "waiting" first.
#include "check.h"

#include <unistd.h>

static void never(void *)
{
	for (;;)
		pause();
}

int main()
{
	int *data;
	CUDA(cudaMalloc(&data, 4096));
	CUDA(cudaLaunchHostFunc(nullptr, never, nullptr));
	std::printf("waiting\n");
	std::fflush(stdout);
	const cudaError_t error = cudaDeviceSynchronize();
	std::printf("%s\n", cudaGetErrorName(error));
	return error == cudaSuccess ? 0 : 3;
}
