// Managed memory whose bytes do not come from the GPU can't be touched, and holds no zeros.
#include "../check.h"

int main()
{
	char *data;

	CUDA(cudaMallocManaged(&data, 4096));
	CUDA(cudaMemset(data, 'Z', 4096));
	cudaDeviceSynchronize();
	std::printf("touching\n");
	std::fflush(stdout);
	return data[100] ? 3 : 4;
}
