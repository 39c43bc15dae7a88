// A kernel that writes to an illegal address: the launch succeeds, the next synchronisation
// reports the error, and from then on every call that needs the context reports it again.
#define PROGRAM "illegal_address"
#include "check.h"

__global__ void write_to(int *address)
{
	*address = 1;
}

int main()
{
	int *memory = device_array<int>(1);
	write_to<<<1, 1>>>(memory);
	CUDA(cudaGetLastError());
	CUDA(cudaDeviceSynchronize());

	write_to<<<1, 1>>>(reinterpret_cast<int *>(0x8));
	const cudaError_t launched = cudaGetLastError();
	if (launched != cudaSuccess && launched != cudaErrorIllegalAddress)
		FAIL("the launch reports %s", cudaGetErrorName(launched));
	const struct {
		const char *what;
		cudaError_t error;
	} calls[] = {
		{"cudaDeviceSynchronize", cudaDeviceSynchronize()},
		{"cudaDeviceSynchronize, again", cudaDeviceSynchronize()},
		{"cudaMemset", cudaMemset(memory, 0, sizeof *memory)},
		{"cudaMalloc", cudaMalloc(&memory, 16)},
		{"cudaGetLastError", cudaGetLastError()},
	};
	for (const auto &call : calls)
		if (call.error != cudaErrorIllegalAddress)
			FAIL("%s: %s instead of %s", call.what, cudaGetErrorName(call.error),
			     cudaGetErrorName(cudaErrorIllegalAddress));
	write_to<<<1, 1>>>(memory);
	if (cudaGetLastError() != cudaErrorIllegalAddress)
		FAIL("a launch after the error is accepted");
	std::printf("ok illegal_address: the error sticks\n");
}
