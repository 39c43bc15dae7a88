// Functions of the CPU in a stream: each sees what the copies before it brought, and the copies
// after it take what it wrote.
#define PROGRAM "host_functions"
#include "check.h"

static const int COUNT = 512;

__global__ void add_one(int *values)
{
	values[blockIdx.x * blockDim.x + threadIdx.x]++;
}

struct State {
	int *pinned;
	int calls, expected;
	bool wrong;
};

/// Doubles the buffer; notes whether it was what the copy should have brought.
static void double_values(void *argument)
{
	State *state = static_cast<State *>(argument);
	state->expected++;
	for (int i = 0; i < COUNT; i++) {
		state->wrong |= state->pinned[i] != state->expected;
		state->pinned[i] *= 2;
	}
	state->expected *= 2;
	state->calls++;
}

int main(int argc, char **argv)
{
	const int rounds = size_option(argc, argv, 5, 1, 25);
	int *values = to_device(std::vector<int>(COUNT, 0));
	State state = {};
	cudaStream_t stream;
	CUDA(cudaMallocHost(&state.pinned, COUNT * sizeof(int)));
	CUDA(cudaStreamCreate(&stream));
	int expected = 0;
	for (int round = 0; round < rounds; round++) {
		add_one<<<COUNT / 128, 128, 0, stream>>>(values);
		CUDA(cudaGetLastError());
		CUDA(cudaMemcpyAsync(state.pinned, values, COUNT * sizeof(int), cudaMemcpyDeviceToHost, stream));
		CUDA(cudaLaunchHostFunc(stream, double_values, &state));
		CUDA(cudaMemcpyAsync(values, state.pinned, COUNT * sizeof(int), cudaMemcpyHostToDevice, stream));
		expected = 2 * (expected + 1);
	}
	CUDA(cudaStreamSynchronize(stream));
	if (state.calls != rounds)
		FAIL("%d calls instead of %d", state.calls, rounds);
	if (state.wrong)
		FAIL("a function ran before the copy in front of it, or after the one behind it");
	for (int value : to_host(values, COUNT))
		if (value != expected)
			FAIL("%d instead of %d", value, expected);
	CUDA(cudaStreamDestroy(stream));
	CUDA(cudaFreeHost(state.pinned));
	CUDA(cudaFree(values));
	std::printf("ok host_functions: %d rounds\n", rounds);
}
