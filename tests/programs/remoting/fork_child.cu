// The child of a process that uses CUDA gets CUDA's error; the parent goes on.
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

int main()
{
	int *device, host = 0;
	CUDA(cudaMalloc(&device, sizeof(int)));
	CUDA(cudaMemset(device, 7, sizeof(int)));
	for (int round = 0; round < 3; round++) {
		const pid_t child = fork();
		if (child == 0) {
			int *mine = nullptr;
			const cudaError_t error = cudaMalloc(&mine, sizeof(int));
			_exit(error == cudaErrorInitializationError ? 0 : 1 + (int)error % 100);
		}
		int status = -1;
		waitpid(child, &status, 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			FAIL("the child got status %x", status);
		CUDA(cudaMemcpy(&host, device, sizeof(int), cudaMemcpyDeviceToHost));
		EXPECT(host == 0x07070707);
	}
	return passed();
}
