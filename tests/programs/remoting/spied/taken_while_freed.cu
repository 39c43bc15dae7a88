// One thread allocates what another has just freed, before the other hears that it is
// freed.  Only one buffer of that size fits the GPU.
#include "../check.h"

#include <cstring>
#include <thread>

// Has the driver noted that call?
static bool noted(const char *call)
{
	char line[64];
	bool found = false;
	FILE *log = std::fopen(std::getenv("SPY_DRIVER_LOG"), "r");
	while (log && std::fgets(line, sizeof line, log))
		found = found || std::strncmp(line, call, std::strlen(call)) == 0;
	if (log)
		std::fclose(log);
	return found;
}

int main()
{
	size_t available, total;
	void *first, *second, *small;
	CUDA(cudaMemGetInfo(&available, &total));
	const size_t bytes = available / 4 * 3;
	CUDA(cudaMalloc(&first, bytes));
	std::thread other([&] { CUDA(cudaFree(first)); });
	while (!noted("free"))
		std::this_thread::yield();
	const cudaError_t taken = cudaMalloc(&second, bytes);
	CUDA(cudaMalloc(&small, 256));
	other.join();
	if (taken != cudaSuccess)
		FAIL("%s", cudaGetErrorName(taken));
	if (second != first)
		FAIL("the addresses differ: the test shows nothing");
	CUDA(cudaMemset(second, 1, 4096));
	CUDA(cudaDeviceSynchronize());
	return passed();
}
