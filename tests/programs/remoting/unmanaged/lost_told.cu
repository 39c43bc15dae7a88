// The GPU is lost while a callback of the log touches managed memory: the program ends, and does not hang.
#include "../check.h"

#include <cuda.h>
#include <dlfcn.h>

__global__ void fill(int *data, int n)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		data[i] = i;
}

static int *away;

static void hear(void *, CUlogLevel, char *, size_t)
{
	away[1 << 18]++;
}

int main()
{
	const int n = 1 << 20;
	int *data;
	char line[8];
	CUlogsCallbackHandle handle;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	auto listen = reinterpret_cast<decltype(&cuLogsRegisterCallback)>(dlsym(driver, "cuLogsRegisterCallback"));

	CUDA(cudaMallocManaged(&data, n * sizeof(int)));
	CUDA(cudaMallocManaged(&away, n * sizeof(int)));
	fill<<<1, 256>>>(data, n);
	fill<<<1, 256>>>(away, n);
	EXPECT(listen(hear, nullptr, &handle) == CUDA_SUCCESS);
	std::printf("waiting\n");
	std::fflush(stdout);
	EXPECT(std::fgets(line, sizeof(line), stdin));
	std::printf("touching\n");
	std::fflush(stdout);
	return data[n - 1] == 3;
}
