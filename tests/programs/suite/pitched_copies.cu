// Pitched memory: cudaMallocPitch, two-dimensional copies of a rectangle into the middle of
// another in all directions, two-dimensional fills; nothing around the rectangles changes.
#define PROGRAM "pitched_copies"
#include "check.h"

__global__ void add_coordinates(uint8_t *image, size_t pitch, int width, int height)
{
	const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
	if (x < width && y < height)
		image[y * pitch + x] += static_cast<uint8_t>(x + 3 * y);
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 150, 32, 16384);
	const int width = size, height = size - 13, wide = 2 * width + 5;
	uint8_t *image = nullptr, *other = nullptr;
	size_t pitch = 0, other_pitch = 0;
	CUDA(cudaMallocPitch(&image, &pitch, width, height));
	CUDA(cudaMallocPitch(&other, &other_pitch, wide, height + 10));
	if (pitch < static_cast<size_t>(width) || pitch % 32 || other_pitch < static_cast<size_t>(wide))
		FAIL("pitch %zu for %d bytes", pitch, width);

	// Host to device from a wider host image, starting at its column 4.
	std::vector<uint8_t> source(static_cast<size_t>(wide) * height);
	for (size_t i = 0; i < source.size(); i++)
		source[i] = static_cast<uint8_t>(hash(i));
	CUDA(cudaMemcpy2D(image, pitch, &source[4], wide, width, height, cudaMemcpyHostToDevice));
	add_coordinates<<<dim3((width + 31) / 32, (height + 3) / 4), dim3(32, 4)>>>(image, pitch, width, height);
	CUDA(cudaGetLastError());
	// Device to device into the middle of a filled image, with a filled rectangle on top.
	CUDA(cudaMemset2D(other, other_pitch, 0x11, wide, height + 10));
	CUDA(cudaMemcpy2D(other + 5 * other_pitch + 7, other_pitch, image, pitch, width, height, cudaMemcpyDeviceToDevice));
	CUDA(cudaMemset2D(other + 8 * other_pitch + 9, other_pitch, 0x22, 3, 4));
	// Device to host into the middle of a host image.
	std::vector<uint8_t> result(static_cast<size_t>(wide + 6) * (height + 12), 0x33);
	CUDA(cudaMemcpy2D(&result[wide + 6 + 2], wide + 6, other, other_pitch, wide, height + 10, cudaMemcpyDeviceToHost));

	for (int y = 0; y < height + 12; y++)
		for (int x = 0; x < wide + 6; x++) {
			const int ox = x - 2, oy = y - 1, ix = ox - 7, iy = oy - 5;
			int expected = 0x33;
			if (ox >= 0 && ox < wide && oy >= 0 && oy < height + 10)
				expected = 0x11;
			if (ix >= 0 && ix < width && iy >= 0 && iy < height)
				expected = static_cast<uint8_t>(source[static_cast<size_t>(iy) * wide + 4 + ix] + ix + 3 * iy);
			if (ox >= 9 && ox < 12 && oy >= 8 && oy < 12)
				expected = 0x22;
			const int found = result[static_cast<size_t>(y) * (wide + 6) + x];
			if (found != expected)
				FAIL("pixel (%d, %d): %02x instead of %02x", x, y, found, expected);
		}
	if (cudaMemcpy2D(image, width - 1, source.data(), wide, width, 2, cudaMemcpyHostToDevice) != cudaErrorInvalidPitchValue)
		FAIL("a pitch below the width is accepted");
	cudaGetLastError();
	CUDA(cudaFree(image));
	CUDA(cudaFree(other));
	std::printf("ok pitched_copies of %d x %d bytes, pitch %zu\n", width, height, pitch);
}
