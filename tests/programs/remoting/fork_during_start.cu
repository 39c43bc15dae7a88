// A child forked while another thread starts CUDA gets an error, and never waits for
// a lock that the parent's thread held.
#include "check.h"

#include <atomic>
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

int main()
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	auto cuInit = (decltype(&::cuInit))dlsym(library, "cuInit");
	auto cuDriverGetVersion =
		(decltype(&::cuDriverGetVersion))dlsym(library, "cuDriverGetVersion");
	auto cuDeviceGetCount = (decltype(&::cuDeviceGetCount))dlsym(library, "cuDeviceGetCount");
	std::atomic<bool> begun{false}, over{false};
	std::thread starter([&] {
		begun = true;
		EXPECT(cuInit(0) == CUDA_SUCCESS);
		over = true;
	});
	int children = 0, version, count, status;

	while (!begun)
		;
	do {
		pid_t child = fork();

		EXPECT(child >= 0);
		if (child == 0) {
			alarm(20);
			cuDriverGetVersion(&version);
			/* Whoever forks before CUDA has begun may use it in the child. */
			CUresult result = cuInit(0);
			_exit(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
		}
		EXPECT(waitpid(child, &status, 0) == child);
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			FAIL("child %d: status %#x", children, status);
		children++;
	} while (!over);
	starter.join();
	EXPECT(cuDeviceGetCount(&count) == CUDA_SUCCESS && count > 0);
	return passed();
}
