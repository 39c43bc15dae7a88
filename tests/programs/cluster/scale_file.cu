// Reads 32-bit floats from a file, scales them by a factor on the GPU, and writes them to another: for tests of a program
// that has its GPU and its storage from two other machines.
//
// Exits 0 once the output is on its device (fsync), 1 on an error of CUDA or of a file, which is printed.
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>

#include "check.h"

__global__ void scale(float *values, size_t count, float factor)
{
	size_t index = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

	if (index < count)
		values[index] *= factor;
}

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(int argc, char **argv)
{
	std::vector<float> values(1 << 16);
	float *device;
	size_t count, all = 0;
	FILE *in, *out;

	if (argc != 4) {
		fprintf(stderr, "usage: scale_file IN OUT FACTOR\n");
		return 2;
	}
	if (!(in = fopen(argv[1], "rb")))
		return fail(argv[1]);
	if (!(out = fopen(argv[2], "wb")))
		return fail(argv[2]);
	CHECK(cudaMalloc(&device, values.size() * sizeof(float)));
	while ((count = fread(values.data(), sizeof(float), values.size(), in)) > 0) {
		CHECK(cudaMemcpy(device, values.data(), count * sizeof(float), cudaMemcpyHostToDevice));
		scale<<<(unsigned)((count + 255) / 256), 256>>>(device, count, (float)atof(argv[3]));
		CHECK(cudaMemcpy(values.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost));
		if (fwrite(values.data(), sizeof(float), count, out) != count)
			return fail(argv[2]);
		all += count;
	}
	if (ferror(in))
		return fail(argv[1]);
	if (fflush(out) || fsync(fileno(out)) || fclose(out))
		return fail(argv[2]);
	printf("scaled %zu values\n", all);
	return 0;
}
