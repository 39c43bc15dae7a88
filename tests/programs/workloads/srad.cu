// SRAD: speckle-reducing anisotropic diffusion of an ultrasound image (Yu and Acton, 2002).  Each
// iteration reduces the image to mean and variance, works out a diffusion coefficient per pixel
// from its gradient and Laplacian, and diffuses.  Sums are trees of a fixed shape and the rest is
// + - * /, so the CPU agrees bit for bit.  `--size` is the edge of the image.
#define PROGRAM "srad"
#include "workload.h"

static const int THREADS = 256;
static const float RATE = 0.5f;

/// Per block, the sums of the pixels and of their squares.
__global__ void reduce(const float *image, int cells, float *sums, float *squares)
{
	__shared__ float sum[THREADS], square[THREADS];
	const int i = blockIdx.x * THREADS + threadIdx.x;
	const float value = i < cells ? image[i] : 0.0f;
	sum[threadIdx.x] = value;
	square[threadIdx.x] = value * value;
	for (int half = THREADS / 2; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half) {
			sum[threadIdx.x] += sum[threadIdx.x + half];
			square[threadIdx.x] += square[threadIdx.x + half];
		}
	}
	if (threadIdx.x == 0) {
		sums[blockIdx.x] = sum[0];
		squares[blockIdx.x] = square[0];
	}
}

struct Gradient {
	float north, south, west, east;
};

/// Differences to the four neighbours; beyond an edge lies the edge itself.
__host__ __device__ static Gradient gradient_of(const float *image, int x, int y, int size)
{
	const float *pixel = image + y * size + x;
	return {y > 0 ? pixel[-size] - *pixel : 0.0f, y < size - 1 ? pixel[size] - *pixel : 0.0f,
		x > 0 ? pixel[-1] - *pixel : 0.0f, x < size - 1 ? pixel[1] - *pixel : 0.0f};
}

/// The diffusion coefficient of the paper, kept within 0 to 1; q0 is the speckle scale, squared.
__host__ __device__ static float coefficient_of(const Gradient &d, float pixel, float q0)
{
	const float squares = (d.north * d.north + d.south * d.south + d.west * d.west + d.east * d.east) / (pixel * pixel);
	const float laplacian = (d.north + d.south + d.west + d.east) / pixel;
	const float numerator = 0.5f * squares - 0.0625f * (laplacian * laplacian);
	const float denominator = 1.0f + 0.25f * laplacian;
	const float q = numerator / (denominator * denominator);
	const float coefficient = 1.0f / (1.0f + (q - q0) / (q0 * (1.0f + q0)));
	return coefficient < 0.0f ? 0.0f : coefficient > 1.0f ? 1.0f : coefficient;
}

__host__ __device__ static float diffuse(const Gradient &d, const float *coefficients, float pixel, int x, int y, int size)
{
	const float *here = coefficients + y * size + x;
	const float south = y < size - 1 ? here[size] : *here, east = x < size - 1 ? here[1] : *here;
	const float divergence = *here * d.north + south * d.south + *here * d.west + east * d.east;
	return pixel + 0.25f * RATE * divergence;
}

__global__ void find_coefficients(const float *image, float4 *gradients, float *coefficients, int size, float q0)
{
	const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
	if (x >= size || y >= size)
		return;
	const Gradient d = gradient_of(image, x, y, size);
	gradients[y * size + x] = make_float4(d.north, d.south, d.west, d.east);
	coefficients[y * size + x] = coefficient_of(d, image[y * size + x], q0);
}

__global__ void update(float *image, const float4 *gradients, const float *coefficients, int size)
{
	const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
	if (x >= size || y >= size)
		return;
	const float4 d = gradients[y * size + x];
	image[y * size + x] = diffuse({d.x, d.y, d.z, d.w}, coefficients, image[y * size + x], x, y, size);
}

static float speckle_scale(const std::vector<float> &sums, const std::vector<float> &squares, int cells)
{
	double sum = 0, square = 0;
	for (size_t i = 0; i < sums.size(); i++) {
		sum += sums[i];
		square += squares[i];
	}
	const double mean = sum / cells, variance = square / cells - mean * mean;
	return static_cast<float>(variance / (mean * mean));
}

static float tree_sum(std::vector<float> values)
{
	for (int half = THREADS / 2; half > 0; half /= 2)
		for (int i = 0; i < half; i++)
			values[i] += values[i + half];
	return values[0];
}

int main(int argc, char **argv)
{
	const Options options = parse(argc, argv, { 96, 3 }, 2, 16384);
	const int size = options.size, cells = size * size, blocks = (cells + THREADS - 1) / THREADS;
	std::vector<float> image(cells), coefficients(cells);
	std::vector<Gradient> gradients(cells);
	for (int i = 0; i < cells; i++) {
		const int dx = i % size - size / 2, dy = i / size - size / 2;
		const float tissue = dx * dx + dy * dy < size * size / 9 ? 2.5f : 1.25f;
		image[i] = tissue * (0.5f + hash(i) * 0x1p-32f); // speckle multiplies
	}

	Stopwatch watch;
	float *device_image = to_device(image), *device_coefficients = device_array<float>(cells);
	float4 *device_gradients = device_array<float4>(cells);
	float *device_sums = device_array<float>(blocks), *device_squares = device_array<float>(blocks);
	const dim3 threads(16, 16), grid((size + 15) / 16, (size + 15) / 16);
	for (int iteration = 0; iteration < options.iterations; iteration++) {
		watch.start();
		reduce<<<blocks, THREADS>>>(device_image, cells, device_sums, device_squares);
		CUDA(cudaGetLastError());
		watch.stop();
		const float q0 = speckle_scale(to_host(device_sums, blocks), to_host(device_squares, blocks), cells);
		watch.start();
		find_coefficients<<<grid, threads>>>(device_image, device_gradients, device_coefficients, size, q0);
		update<<<grid, threads>>>(device_image, device_gradients, device_coefficients, size);
		CUDA(cudaGetLastError());
		watch.stop();
	}

	for (int iteration = 0; iteration < options.iterations; iteration++) {
		std::vector<float> sums, squares;
		for (int block = 0; block < blocks; block++) {
			std::vector<float> values(THREADS, 0.0f), products(THREADS, 0.0f);
			for (int i = 0; i < THREADS && block * THREADS + i < cells; i++) {
				values[i] = image[block * THREADS + i];
				products[i] = values[i] * values[i];
			}
			sums.push_back(tree_sum(values));
			squares.push_back(tree_sum(products));
		}
		const float q0 = speckle_scale(sums, squares, cells);
		for (int i = 0; i < cells; i++) {
			gradients[i] = gradient_of(image.data(), i % size, i / size, size);
			coefficients[i] = coefficient_of(gradients[i], image[i], q0);
		}
		for (int i = 0; i < cells; i++)
			image[i] = diffuse(gradients[i], coefficients.data(), image[i], i % size, i / size, size);
	}
	const std::vector<float> result = to_host(device_image, cells);
	for (int i = 0; i < cells; i++)
		if (!(result[i] == image[i]))
			FAIL("pixel (%d, %d): %.9g instead of %.9g", i % size, i / size, result[i], image[i]);
	for (void *array : {(void *)device_image, (void *)device_coefficients, (void *)device_gradients,
			    (void *)device_sums, (void *)device_squares})
		CUDA(cudaFree(array));
	report(options, watch);
}
