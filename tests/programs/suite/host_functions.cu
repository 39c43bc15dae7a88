// Functions of the CPU in a stream: each sees what the copies before it brought, and the copies
// after it take what it wrote.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FAIL(...) (std::printf("FAIL host_functions " __VA_ARGS__), std::puts(""), std::exit(1))

#define CUDA(call)                                                                 \
	do {                                                                       \
		if (const cudaError_t error = (call))                              \
			FAIL("%s: %s", #call, cudaGetErrorString(error));          \
	} while (0)

/// The N of `--size N`, or `size`; ends the program when N is not from `least` to `most`.
static long size_option(int argc, char **argv, long size, long least, long most)
{
	if (argc == 1)
		return size;
	if (argc != 3 || std::strcmp(argv[1], "--size"))
		FAIL("does not know its arguments; usage: %s [--size N]", argv[0]);
	char *end;
	size = std::strtol(argv[2], &end, 10);
	if (*end || end == argv[2] || size < least || size > most)
		FAIL("--size %s: N must be from %ld to %ld", argv[2], least, most);
	return size;
}

template <typename T> static T *device_array(size_t count)
{
	T *array = nullptr;
	CUDA(cudaMalloc(&array, count * sizeof(T)));
	return array;
}

template <typename T> static T *to_device(const std::vector<T> &values)
{
	T *array = device_array<T>(values.size());
	CUDA(cudaMemcpy(array, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
	return array;
}

template <typename T> static std::vector<T> to_host(const T *array, size_t count)
{
	std::vector<T> values(count);
	CUDA(cudaMemcpy(values.data(), array, count * sizeof(T), cudaMemcpyDeviceToHost));
	return values;
}

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
