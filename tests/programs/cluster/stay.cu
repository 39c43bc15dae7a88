// Uses a GPU until told to end: for tests that kill something meanwhile.
//
// Prints "using DEVICES device(s)" once its first kernel has run, then keeps
// launching until the file named by its argument exists, every PAUSE_MS (5).  Exits 0
// when the results were right throughout, 1 on a CUDA error (printed), 2 on a wrong one.
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#include "check.h"

__global__ void increment(int *values, int count)
{
	int index = blockIdx.x * blockDim.x + threadIdx.x;

	if (index < count)
		values[index]++;
}

int main(int argc, char **argv)
{
	const int count = 1024;
	int devices = 0, last = 0;
	const int pause_ms = argc == 3 ? atoi(argv[2]) : 5;
	int *values;

	if (argc != 2 && argc != 3) {
		fprintf(stderr, "usage: stay FILE [PAUSE_MS]\n");
		return 2;
	}
	CHECK(cudaGetDeviceCount(&devices));
	CHECK(cudaMalloc(&values, count * sizeof(*values)));
	CHECK(cudaMemset(values, 0, count * sizeof(*values)));
	for (int round = 1;; round++) {
		increment<<<count / 128, 128>>>(values, count);
		CHECK(cudaGetLastError());
		CHECK(cudaMemcpy(&last, values + count - 1, sizeof(last), cudaMemcpyDeviceToHost));
		if (last != round) {
			printf("round %d counted %d\n", round, last);
			return 2;
		}
		if (round == 1) {
			printf("using %d device(s)\n", devices);
			fflush(stdout);
		}
		if (access(argv[1], F_OK) == 0)
			break;
		usleep(pause_ms * 1000);
	}
	CHECK(cudaFree(values));
	printf("right %s\n", "throughout");
	return 0;
}
