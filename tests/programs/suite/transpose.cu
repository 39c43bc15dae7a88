// Transpose of a rectangular matrix through padded tiles in shared memory (32 x 8 threads for
// 32 x 32 tiles), for elements of 1, 2, 4, 8 and 16 bytes.
#define PROGRAM "transpose"
#include "check.h"

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
