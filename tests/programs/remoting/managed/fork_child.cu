// A child has none of the parent's managed memory, and the parent loses nothing by it.
#include "../check.h"

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

__global__ void add(int *data, int n, int by)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		data[i] += by;
}

int main()
{
	const int n = 100000;
	int *data, status;

	CUDA(cudaMallocManaged(&data, n * sizeof(int)));
	for (int i = 0; i < n; i++)
		data[i] = i;
	for (int round = 1; round <= 3; round++) {
		add<<<(n + 127) / 128, 128>>>(data, n, 1);
		pid_t child = fork();
		if (!child)
			_exit(cudaDeviceSynchronize() != cudaSuccess ? 7 : 0);
		CUDA(cudaDeviceSynchronize());
		for (int i = 0; i < n; i += 3)
			EXPECT(data[i] == i + round);
		EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	}
	EXPECT(system("true") == 0);
	data[0] = 50;
	add<<<(n + 127) / 128, 128>>>(data, n, 1);
	CUDA(cudaDeviceSynchronize());
	EXPECT(data[0] == 51 && data[n - 1] == n - 1 + 4);
	return passed();
}
