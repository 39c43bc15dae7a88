// Adds two vectors on a GPU, compares with the processor, and begins anew with others until told to end.
//
// usage: vectors FILE MIB.  Each vector has MIB MiB.  Prints "round N is right" when a sum has been compared,
// ends when the file is there, with "ROUNDS rounds were right" and 0; with 1 on a CUDA error (printed), 2 on a wrong sum.
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>

#include "check.h"

__global__ void add(const float *a, const float *b, float *sum, int count)
{
	int index = blockIdx.x * blockDim.x + threadIdx.x;

	if (index < count)
		sum[index] = a[index] + b[index];
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: vectors FILE MIB\n");
		return 2;
	}
	const int count = atoi(argv[2]) * (1 << 20) / sizeof(float);
	const size_t bytes = count * sizeof(float);
	std::vector<float> a(count), b(count), sum(count);
	float *on_gpu[3];
	int round = 0;

	for (float *&vector : on_gpu)
		CHECK(cudaMalloc(&vector, bytes));
	do {
		round++;
		for (int index = 0; index < count; index++) {
			a[index] = index % 10007 + round;
			b[index] = index % 9973 * 0.5f;
		}
		CHECK(cudaMemcpy(on_gpu[0], a.data(), bytes, cudaMemcpyHostToDevice));
		CHECK(cudaMemcpy(on_gpu[1], b.data(), bytes, cudaMemcpyHostToDevice));
		add<<<(count + 255) / 256, 256>>>(on_gpu[0], on_gpu[1], on_gpu[2], count);
		CHECK(cudaGetLastError());
		CHECK(cudaMemcpy(sum.data(), on_gpu[2], bytes, cudaMemcpyDeviceToHost));
		for (int index = 0; index < count; index++)
			if (sum[index] != a[index] + b[index]) {
				printf("round %d: element %d is %g\n", round, index, sum[index]);
				return 2;
			}
		printf("round %d is right\n", round);
		fflush(stdout);
	} while (access(argv[1], F_OK) != 0);
	for (float *vector : on_gpu)
		CHECK(cudaFree(vector));
	printf("%d rounds were right\n", round);
	return 0;
}
