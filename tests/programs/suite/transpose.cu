// Transpose of a rectangular matrix through padded tiles in shared memory (32 x 8 threads for
// 32 x 32 tiles), for elements of 1, 2, 4, 8 and 16 bytes.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FAIL(...) (std::printf("FAIL transpose " __VA_ARGS__), std::puts(""), std::exit(1))

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

static const int TILE = 32;
static const int ROWS = 8;

template <typename T> __global__ void transpose(const T *in, T *out, int width, int height)
{
	__shared__ T tile[TILE][TILE + 1];
	int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
	for (int k = 0; k < TILE; k += ROWS)
		if (x < width && y + k < height)
			tile[threadIdx.y + k][threadIdx.x] = in[static_cast<size_t>(y + k) * width + x];
	__syncthreads();
	x = blockIdx.y * TILE + threadIdx.x;
	y = blockIdx.x * TILE + threadIdx.y;
	for (int k = 0; k < TILE; k += ROWS)
		if (x < height && y + k < width)
			out[static_cast<size_t>(y + k) * height + x] = tile[threadIdx.x][threadIdx.y + k];
}

template <typename T> static void check(int width, int height)
{
	std::vector<T> matrix(static_cast<size_t>(width) * height);
	auto *bytes = reinterpret_cast<uint8_t *>(matrix.data());
	for (size_t i = 0; i < matrix.size() * sizeof(T); i++)
		bytes[i] = static_cast<uint8_t>(hash(i));
	T *in = to_device(matrix), *out = device_array<T>(matrix.size());
	transpose<<<dim3((width + TILE - 1) / TILE, (height + TILE - 1) / TILE), dim3(TILE, ROWS)>>>(in, out, width,
												     height);
	CUDA(cudaGetLastError());
	const std::vector<T> turned = to_host(out, matrix.size());
	for (int y = 0; y < height; y++)
		for (int x = 0; x < width; x++)
			if (std::memcmp(&turned[static_cast<size_t>(x) * height + y],
					&matrix[static_cast<size_t>(y) * width + x], sizeof(T)))
				FAIL("element (%d, %d) of %zu bytes is wrong", x, y, sizeof(T));
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 200, 1, 16384);
	const int width = size + 5, height = size;
	check<uint8_t>(width, height);
	check<uint16_t>(width, height);
	check<uint32_t>(width, height);
	check<uint64_t>(width, height);
	check<uint4>(width, height);
	std::printf("ok transpose of %d x %d, elements of 1 to 16 bytes\n", width, height);
}
