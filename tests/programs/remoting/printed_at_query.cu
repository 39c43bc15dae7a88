// What a kernel printed is there when a query has told of its end, also behind queries that found
// nothing new: the program reads its own standard output through a pipe.
#include "check.h"

#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>

__global__ void print(int round)
{
	printf("round %d\n", round);
}

static std::string printed(int pipe_end)
{
	char buffer[256];
	std::string text;
	std::fflush(stdout);
	for (ssize_t length; (length = read(pipe_end, buffer, sizeof buffer)) > 0;)
		text.append(buffer, (size_t)length);
	return text;
}

int main()
{
	const int rounds = 64;
	int ends[2], wrong = -1;
	std::string text;
	cudaStream_t streams[3] = { cudaStreamLegacy };
	cudaEvent_t event;
	CUDA(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&streams[2], cudaStreamNonBlocking));
	CUDA(cudaEventCreate(&event));
	std::fflush(stdout);
	const int output = dup(STDOUT_FILENO);
	if (output < 0 || pipe2(ends, O_NONBLOCK) < 0 || dup2(ends[1], STDOUT_FILENO) < 0)
		return 1;
	for (int round = 0; round < rounds && wrong < 0; round++) {
		cudaStream_t stream = streams[round % 3];
		const std::string expected = "round " + std::to_string(round) + "\n";
		cudaError_t result;
		// The same questions before and behind the launch, which is all that lies between.
		for (int i = 0; i < 3; i++)
			(void)cudaStreamQuery(streams[i]);
		(void)cudaStreamQuery(stream);
		(void)cudaStreamQuery(stream);
		print<<<1, 1, 0, stream>>>(round);
		if (round / 3 % 2 == 0) {
			while ((result = cudaStreamQuery(stream)) == cudaErrorNotReady)
				;
		} else {
			result = cudaEventRecord(event, stream);
			while (result == cudaSuccess || result == cudaErrorNotReady) {
				result = cudaEventQuery(event);
				if (result == cudaSuccess)
					break;
			}
		}
		text = result == cudaSuccess ? printed(ends[0]) : "";
		if (text != expected)
			wrong = round;
	}
	std::fflush(stdout);
	dup2(output, STDOUT_FILENO);
	if (wrong >= 0) {
		std::printf("round %d: '%s'\n", wrong, text.c_str());
		return 1;
	}
	std::printf("ok\n");
}
