// printf on the GPU: the program catches its own standard output in a pipe and compares the lines
// (sorted: threads print in any order) with what the C library formats.
#define PROGRAM "device_printf"
#include "check.h"

#include <algorithm>
#include <string>

#include <unistd.h>

#define FORMAT "thread %d: %u %5d|%-5d|%05d %x %c %s %.3f %e %lld %llu %p %%"
#define ARGUMENTS(i)                                                                                  \
	i, 4000000000u + i, i, i, -(i), 255 + (i), 'a' + (i) % 26, (i) % 2 ? "odd" : "even", (i) / 8.0, \
		(i) * 1e10, (i) * -10000000000ll, ~0ull - (i), reinterpret_cast<void *>(0x1000l + (i))

__global__ void print(int count)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < count)
		printf(FORMAT "\n", ARGUMENTS(i));
	if (i == 0)
		printf("no arguments\n");
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 70, 1, 300); // a pipe holds 64 KiB
	int pipe_ends[2];
	const int terminal = dup(1);
	std::fflush(stdout);
	if (terminal < 0 || pipe(pipe_ends) || dup2(pipe_ends[1], 1) < 0)
		FAIL("can't redirect the standard output");
	print<<<(count + 31) / 32, 32>>>(count);
	const cudaError_t launched = cudaGetLastError();
	const cudaError_t finished = cudaDeviceSynchronize();
	std::fflush(stdout);
	dup2(terminal, 1);
	close(pipe_ends[1]);
	CUDA(launched);
	CUDA(finished);

	std::string text;
	char buffer[4096];
	for (ssize_t length; (length = read(pipe_ends[0], buffer, sizeof buffer)) > 0;)
		text.append(buffer, length);
	std::vector<std::string> lines, expected(1, "no arguments");
	for (size_t start = 0, end; (end = text.find('\n', start)) != std::string::npos; start = end + 1)
		lines.push_back(text.substr(start, end - start));
	for (int i = 0; i < count; i++) {
		std::snprintf(buffer, sizeof buffer, FORMAT, ARGUMENTS(i));
		expected.push_back(buffer);
	}
	std::sort(lines.begin(), lines.end());
	std::sort(expected.begin(), expected.end());
	if (lines.size() != expected.size())
		FAIL("%zu lines instead of %zu", lines.size(), expected.size());
	for (size_t i = 0; i < lines.size(); i++)
		if (lines[i] != expected[i])
			FAIL("'%s' instead of '%s'", lines[i].c_str(), expected[i].c_str());
	std::printf("ok device_printf of %zu lines\n", lines.size());
}
