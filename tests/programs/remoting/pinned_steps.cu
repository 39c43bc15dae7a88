// Allocates pinned memory, copies for ever, frees it: says each step and waits to be told to go on
// by a line on stdin.
#include "check.h"

#include <csignal>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

static void step(const char *name)
{
	char line[16];
	std::printf("%s\n", name);
	std::fflush(stdout);
	if (!std::fgets(line, sizeof(line), stdin))
		std::exit(0);
}

static void nothing(void *)
{
	pause();
}

int main(int argc, char **argv)
{
	const size_t bytes = (size_t)(argc > 1 ? atol(argv[1]) : 1024) << 10;
	unsigned char *pinned, *device;
	cudaStream_t stream;
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaMalloc(&device, bytes));
	step("begun");
	CUDA(cudaMallocHost(&pinned, bytes));
	std::memset(pinned, 7, bytes);
	step("allocated");
	CUDA(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream));
	CUDA(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream));
	step("copying");
	CUDA(cudaFreeHost(pinned));
	step("freed");
	CUDA(cudaMallocHost(&pinned, bytes));
	// Not the child's, as with the driver's own.
	const pid_t child = fork();
	if (child == 0) {
		volatile unsigned char *gone = pinned;
		_exit(gone[0]);
	}
	int status = 0;
	waitpid(child, &status, 0);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	step("forked");
	// Something that never ends stands before a copy from it.
	CUDA(cudaLaunchHostFunc(stream, nothing, nullptr));
	CUDA(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream));
	step("stuck");
	return 0;
}
