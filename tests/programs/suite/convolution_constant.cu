// Separable Gaussian blur of an image with the weights in constant memory, edges clamped; rows
// through shared memory, columns straight from global memory.  Bit for bit in float.
#define PROGRAM "convolution_constant"
#include "check.h"

#include <cmath>

static const int RADIUS = 6;
static const int THREADS = 128;

__constant__ float weights[2 * RADIUS + 1];

__host__ __device__ static int clamp(int i, int size)
{
	return i < 0 ? 0 : i < size ? i : size - 1;
}

__global__ void blur_rows(const float *in, float *out, int width)
{
	__shared__ float line[THREADS + 2 * RADIUS];
	const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y;
	for (int k = threadIdx.x; k < THREADS + 2 * RADIUS; k += THREADS)
		line[k] = in[y * width + clamp(static_cast<int>(blockIdx.x * THREADS) + k - RADIUS, width)];
	__syncthreads();
	if (x >= width)
		return;
	float sum = 0;
	for (int k = 0; k <= 2 * RADIUS; k++)
		sum += weights[k] * line[threadIdx.x + k];
	out[y * width + x] = sum;
}

__global__ void blur_columns(const float *in, float *out, int width, int height)
{
	const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y;
	if (x >= width)
		return;
	float sum = 0;
	for (int k = 0; k <= 2 * RADIUS; k++)
		sum += weights[k] * in[clamp(y + k - RADIUS, height) * width + x];
	out[y * width + x] = sum;
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 150, 1, 8192);
	const int width = size + 21, height = size;
	float kernel[2 * RADIUS + 1], total = 0;
	for (int k = 0; k <= 2 * RADIUS; k++)
		total += kernel[k] = std::exp(-0.5f * (k - RADIUS) * (k - RADIUS) / 4.0f);
	for (float &weight : kernel)
		weight /= total;
	CUDA(cudaMemcpyToSymbol(weights, kernel, sizeof kernel));

	std::vector<float> image(width * height), rows(image.size()), expected(image.size());
	for (size_t i = 0; i < image.size(); i++)
		image[i] = hash(i) % 256;
	float *in = to_device(image), *between = device_array<float>(image.size());
	const dim3 blocks((width + THREADS - 1) / THREADS, height);
	blur_rows<<<blocks, THREADS>>>(in, between, width);
	CUDA(cudaGetLastError());
	blur_columns<<<blocks, THREADS>>>(between, in, width, height);
	CUDA(cudaGetLastError());

	for (int y = 0; y < height; y++)
		for (int x = 0; x < width; x++) {
			float sum = 0;
			for (int k = 0; k <= 2 * RADIUS; k++)
				sum += kernel[k] * image[y * width + clamp(x + k - RADIUS, width)];
			rows[y * width + x] = sum;
		}
	for (int y = 0; y < height; y++)
		for (int x = 0; x < width; x++) {
			float sum = 0;
			for (int k = 0; k <= 2 * RADIUS; k++)
				sum += kernel[k] * rows[clamp(y + k - RADIUS, height) * width + x];
			expected[y * width + x] = sum;
		}
	const std::vector<float> result = to_host(in, image.size());
	for (size_t i = 0; i < image.size(); i++)
		if (result[i] != expected[i])
			FAIL("pixel (%zu, %zu): %.9g instead of %.9g", i % width, i / width, result[i], expected[i]);
	CUDA(cudaFree(in));
	CUDA(cudaFree(between));
	std::printf("ok convolution_constant of %d x %d pixels, %d weights\n", width, height, 2 * RADIUS + 1);
}
