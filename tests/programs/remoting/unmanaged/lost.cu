// Managed memory whose bytes are on a GPU that is lost: a system call says EFAULT, then touching it ends the program.
#include "../check.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>

__global__ void fill(int *data, int n)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		data[i] = i;
}

int main()
{
	const int n = 1 << 20;
	int *data, *here, pipes[2];
	char line[8];

	CUDA(cudaMallocManaged(&here, 4096, cudaMemAttachHost));
	CUDA(cudaMallocManaged(&data, n * sizeof(int)));
	fill<<<1, 256>>>(data, n);
	here[0] = 5;
	EXPECT(pipe(pipes) == 0);
	std::printf("waiting\n");
	std::fflush(stdout);
	EXPECT(std::fgets(line, sizeof(line), stdin));
	EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorDevicesUnavailable);
	EXPECT(here[0] == 5);
	EXPECT(write(pipes[1], data + n / 2, 64) == -1 && errno == EFAULT);
	std::printf("touching\n");
	std::fflush(stdout);
	return data[n - 1] == 3;
}
