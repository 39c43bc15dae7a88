/* saxpy.cu - what GPU is this, and does it compute y = a x + y?
 *
 * Usage: saxpy [ELEMENTS]
 * Exit code: 0 when every element is right, 1 when one is wrong, 2 for a CUDA error.
 */
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

namespace {

void check(cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return;
	std::fprintf(stderr, "saxpy: %s: %s\n", what, cudaGetErrorString(error));
	std::exit(2);
}

__global__ void saxpy(int elements, float a, const float *x, float *y)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += gridDim.x * blockDim.x)
		y[i] = a * x[i] + y[i];
}

} // namespace

int main(int argc, char **argv)
{
	const int elements = argc > 1 ? std::atoi(argv[1]) : 1 << 20;
	int count = 0, wrong = 0;
	size_t free_bytes, total_bytes;
	float *device_x, *device_y;

	if (elements < 1 || elements > 1 << 26) {
		std::fprintf(stderr, "saxpy: ELEMENTS must be from 1 to %d\n", 1 << 26);
		return 2;
	}
	check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
	for (int device = 0; device < count; device++) {
		cudaDeviceProp properties;

		check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
		check(cudaSetDevice(device), "cudaSetDevice");
		check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
		std::printf("GPU %d: %s, compute capability %d.%d, %d multiprocessors, %zu of %zu MiB free\n", device,
			    properties.name, properties.major, properties.minor, properties.multiProcessorCount,
			    free_bytes >> 20, total_bytes >> 20);
	}
	check(cudaSetDevice(0), "cudaSetDevice");

	/* Small whole numbers: float holds every product and sum exactly, fused or not. */
	std::vector<float> x(elements), y(elements);
	for (int i = 0; i < elements; i++) {
		x[i] = static_cast<float>(i % 1000);
		y[i] = static_cast<float>(i % 77);
	}
	check(cudaMalloc(&device_x, elements * sizeof *device_x), "cudaMalloc");
	check(cudaMalloc(&device_y, elements * sizeof *device_y), "cudaMalloc");
	check(cudaMemcpy(device_x, x.data(), elements * sizeof *device_x, cudaMemcpyHostToDevice), "cudaMemcpy of x");
	check(cudaMemcpy(device_y, y.data(), elements * sizeof *device_y, cudaMemcpyHostToDevice), "cudaMemcpy of y");
	saxpy<<<256, 256>>>(elements, 3.0f, device_x, device_y);
	check(cudaGetLastError(), "launch");
	std::vector<float> result(elements);
	check(cudaMemcpy(result.data(), device_y, elements * sizeof *device_y, cudaMemcpyDeviceToHost),
	      "cudaMemcpy of the result");
	check(cudaFree(device_x), "cudaFree");
	check(cudaFree(device_y), "cudaFree");
	for (int i = 0; i < elements; i++)
		wrong += result[i] != 3.0f * x[i] + y[i];
	if (wrong) {
		std::printf("WRONG: %d of %d elements\n", wrong, elements);
		return 1;
	}
	std::printf("CORRECT: all %d elements of 3 x + y\n", elements);
	return 0;
}
