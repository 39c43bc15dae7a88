// One-dimensional stencil of radius 4 on integers, with a halo in shared memory, several steps;
// outside the array lie zeros.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define FAIL(...) (std::printf("FAIL stencil_1d " __VA_ARGS__), std::puts(""), std::exit(1))

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

/// A bijective mix of 32 bits (lowbias32, C. Wellons, "Prospecting for Hash Functions", 2018).
__host__ __device__ static inline uint32_t hash(uint32_t x)
{
	x = (x ^ (x >> 16)) * 0x7feb352du;
	x = (x ^ (x >> 15)) * 0x846ca68bu;
	return x ^ (x >> 16);
}

static const int THREADS = 128;
static const int RADIUS = 4;

__host__ __device__ static int weight(int offset)
{
	return offset == 0 ? 5 : RADIUS + 1 - (offset < 0 ? -offset : offset);
}

__global__ void step(const int *in, int *out, int count)
{
	__shared__ int tile[THREADS + 2 * RADIUS];
	const int i = blockIdx.x * THREADS + threadIdx.x;
	const int first = static_cast<int>(blockIdx.x) * THREADS - RADIUS;
	for (int k = threadIdx.x; k < THREADS + 2 * RADIUS; k += THREADS)
		tile[k] = first + k >= 0 && first + k < count ? in[first + k] : 0;
	__syncthreads();
	if (i >= count)
		return;
	int sum = 0;
	for (int offset = -RADIUS; offset <= RADIUS; offset++)
		sum += weight(offset) * tile[threadIdx.x + RADIUS + offset];
	out[i] = sum >> 3;
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 30001, 1, 1 << 28);
	const int steps = 5;
	std::vector<int> now(count), next(count);
	for (int i = 0; i < count; i++)
		now[i] = static_cast<int>(hash(i) >> 12) - (1 << 19);
	int *in = to_device(now), *out = device_array<int>(count);
	for (int k = 0; k < steps; k++) {
		step<<<(count + THREADS - 1) / THREADS, THREADS>>>(in, out, count);
		CUDA(cudaGetLastError());
		std::swap(in, out);
	}

	for (int k = 0; k < steps; k++) {
		for (int i = 0; i < count; i++) {
			int sum = 0;
			for (int offset = -RADIUS; offset <= RADIUS; offset++)
				if (i + offset >= 0 && i + offset < count)
					sum += weight(offset) * now[i + offset];
			next[i] = sum >> 3;
		}
		now.swap(next);
	}
	const std::vector<int> result = to_host(in, count);
	for (int i = 0; i < count; i++)
		if (result[i] != now[i])
			FAIL("element %d: %d instead of %d", i, result[i], now[i]);
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	std::printf("ok stencil_1d of %d elements, %d steps\n", count, steps);
}
