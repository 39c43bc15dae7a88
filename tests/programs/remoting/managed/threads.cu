// Threads read and write disjoint pages after the GPU has come to rest, all at once.
#include "../check.h"

#include <thread>
#include <vector>

__global__ void add(long *data, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		data[i] += i;
}

int main()
{
	const int n = 1 << 19, threads = 16, part = n / threads;
	long *data;

	CUDA(cudaMallocManaged(&data, n * sizeof(long)));
	for (int round = 0; round < 6; round++) {
		add<<<n / 256, 256>>>(data, n);
		CUDA(cudaDeviceSynchronize());
		std::vector<std::thread> all;
		int wrong[threads] = {};
		for (int t = 0; t < threads; t++)
			all.emplace_back([=, &wrong] {
				for (int i = t * part; i < (t + 1) * part; i++) {
					wrong[t] += data[i] != (long)(round + 1) * i + round * 5;
					data[i] += 5;
				}
			});
		for (std::thread &thread : all)
			thread.join();
		for (int t = 0; t < threads; t++)
			if (wrong[t])
				FAIL("round %d, thread %d: %d are wrong", round, t, wrong[t]);
	}
	// All of them read the same page that is away.
	add<<<n / 256, 256>>>(data, n);
	CUDA(cudaDeviceSynchronize());
	std::vector<std::thread> all;
	int wrong[threads] = {};
	for (int t = 0; t < threads; t++)
		all.emplace_back([=, &wrong] { wrong[t] = data[7] != 7 * 7 + 30; });
	for (std::thread &thread : all)
		thread.join();
	for (int t = 0; t < threads; t++)
		EXPECT(!wrong[t]);
	return passed();
}
