// Matrix product in float with tiles in shared memory.  The terms of an element are added in the
// order of k, as on the CPU, so the result is the same bit for bit.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FAIL(...) (std::printf("FAIL matmul_tiled " __VA_ARGS__), std::puts(""), std::exit(1))

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

static const int TILE = 16;

__global__ void multiply(const float *a, const float *b, float *c, int rows, int inner, int columns)
{
	__shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
	const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
	float sum = 0.0f;
	for (int k0 = 0; k0 < inner; k0 += TILE) {
		const int ka = k0 + threadIdx.x, kb = k0 + threadIdx.y;
		a_tile[threadIdx.y][threadIdx.x] = row < rows && ka < inner ? a[row * inner + ka] : 0.0f;
		b_tile[threadIdx.y][threadIdx.x] = kb < inner && column < columns ? b[kb * columns + column] : 0.0f;
		__syncthreads();
		const int last = min(TILE, inner - k0);
		for (int k = 0; k < last; k++)
			sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
		__syncthreads();
	}
	if (row < rows && column < columns)
		c[row * columns + column] = sum;
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 120, 5, 8192);
	const int rows = size, inner = size + 7, columns = size - 4;
	std::vector<float> a(rows * inner), b(inner * columns);
	for (size_t i = 0; i < a.size(); i++)
		a[i] = static_cast<int>(hash(i)) * 0x1p-31f;
	for (size_t i = 0; i < b.size(); i++)
		b[i] = static_cast<int>(hash(~i)) * 0x1p-31f;
	float *device_a = to_device(a), *device_b = to_device(b), *device_c = device_array<float>(rows * columns);
	multiply<<<dim3((columns + TILE - 1) / TILE, (rows + TILE - 1) / TILE), dim3(TILE, TILE)>>>(
		device_a, device_b, device_c, rows, inner, columns);
	CUDA(cudaGetLastError());

	const std::vector<float> c = to_host(device_c, rows * columns);
	for (int row = 0; row < rows; row++)
		for (int column = 0; column < columns; column++) {
			float sum = 0.0f;
			for (int k = 0; k < inner; k++)
				sum += a[row * inner + k] * b[k * columns + column];
			if (c[row * columns + column] != sum)
				FAIL("element (%d, %d): %.9g instead of %.9g", row, column, c[row * columns + column],
				     sum);
		}
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(device_c));
	std::printf("ok matmul_tiled of %d x %d by %d x %d\n", rows, inner, inner, columns);
}
