// Errors that the launch itself reports: impossible geometry, too much shared memory, too many
// threads for the kernel's bounds.  None of them is sticky: the next right launch works.
#define PROGRAM "launch_errors"
#include "check.h"

__global__ void count(int *counter)
{
	if (threadIdx.x == 0 && threadIdx.y == 0)
		atomicAdd(counter, 1);
}

__global__ void __launch_bounds__(64) count_bounded(int *counter)
{
	if (threadIdx.x == 0)
		atomicAdd(counter, 1);
}

typedef void (*Kernel)(int *);

int main()
{
	int *counter = to_device(std::vector<int>(1, 0));
	const struct {
		const char *what;
		Kernel kernel;
		dim3 blocks, threads;
		size_t shared;
	} launches[] = {
		{"1025 threads", count, dim3(1), dim3(1025), 0},
		{"no threads", count, dim3(1), dim3(0), 0},
		{"no blocks", count, dim3(0), dim3(32), 0},
		{"65 threads in z", count, dim3(1), dim3(1, 1, 65), 0},
		{"32 x 33 threads", count, dim3(1), dim3(32, 33), 0},
		{"65536 blocks in y", count, dim3(1, 65536), dim3(1), 0},
		{"a MiB of shared memory", count, dim3(1), dim3(32), 1 << 20},
		{"more threads than the launch bounds", count_bounded, dim3(1), dim3(128), 0},
	};
	int expected = 0;
	for (const auto &launch : launches) {
		launch.kernel<<<launch.blocks, launch.threads, launch.shared>>>(counter);
		if (cudaPeekAtLastError() != cudaErrorInvalidValue)
			FAIL("%s: %s instead of cudaErrorInvalidValue", launch.what,
			     cudaGetErrorName(cudaPeekAtLastError()));
		if (cudaGetLastError() != cudaErrorInvalidValue || cudaGetLastError() != cudaSuccess)
			FAIL("%s: cudaGetLastError does not return and clear the error", launch.what);
		launch.kernel<<<dim3(3), dim3(64)>>>(counter);
		CUDA(cudaGetLastError());
		CUDA(cudaDeviceSynchronize());
		expected += 3;
		if (to_host(counter, 1)[0] != expected)
			FAIL("after %s: %d blocks ran instead of %d", launch.what, to_host(counter, 1)[0], expected);
	}

	// Errors of other calls, not sticky either.
	void *memory = nullptr;
	if (cudaMalloc(&memory, ~size_t(0) / 2) != cudaErrorMemoryAllocation)
		FAIL("the device gave 8 EiB");
	if (cudaGetLastError() != cudaErrorMemoryAllocation)
		FAIL("the failed allocation left no error");
	if (cudaSetDevice(1000) != cudaErrorInvalidDevice)
		FAIL("there is a device 1000");
	cudaGetLastError();
	CUDA(cudaFree(counter));
	CUDA(cudaFree(nullptr));
	std::printf("ok launch_errors: %zu bad launches refused\n", sizeof launches / sizeof *launches);
}
