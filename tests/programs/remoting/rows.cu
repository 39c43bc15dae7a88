// Copies and fills of rectangles and boxes, pitched on both sides.
#include "check.h"

#include <cstring>
#include <vector>

int main()
{
	const size_t width = 1000, height = 700, host_pitch = 1100;
	unsigned char *device, *other;
	size_t pitch, other_pitch;
	std::vector<unsigned char> source(host_pitch * height), target(host_pitch * height, 0xee);
	for (size_t i = 0; i < source.size(); i++)
		source[i] = (unsigned char)(i * 7 + i / 251);
	CUDA(cudaMallocPitch(&device, &pitch, width, height));
	CUDA(cudaMallocPitch(&other, &other_pitch, width + 600, height));
	EXPECT(pitch >= width && other_pitch >= width + 600);
	CUDA(cudaMemcpy2D(device, pitch, source.data(), host_pitch, width, height, cudaMemcpyHostToDevice));
	CUDA(cudaMemcpy2D(other, other_pitch, device, pitch, width, height, cudaMemcpyDeviceToDevice));
	CUDA(cudaMemset2D(other, other_pitch, 0x11, 10, height));
	CUDA(cudaMemcpy2D(target.data(), host_pitch, other, other_pitch, width, height, cudaMemcpyDeviceToHost));
	for (size_t y = 0; y < height; y++)
		for (size_t x = 0; x < host_pitch; x++) {
			const unsigned char wanted = x < 10	 ? 0x11
						     : x < width ? source[y * host_pitch + x]
								 : 0xee;
			if (target[y * host_pitch + x] != wanted)
				FAIL("row %zu, column %zu", y, x);
		}

	// A box within a box, in three dimensions.
	const size_t nx = 40, ny = 30, nz = 20;
	std::vector<unsigned char> box(nx * ny * nz), back(nx * ny * nz, 0);
	for (size_t i = 0; i < box.size(); i++)
		box[i] = (unsigned char)(i * 13);
	cudaPitchedPtr on_device;
	CUDA(cudaMalloc3D(&on_device, make_cudaExtent(nx, ny, nz)));
	cudaMemcpy3DParms in = {};
	in.srcPtr = make_cudaPitchedPtr(box.data(), nx, nx, ny);
	in.dstPtr = on_device;
	in.extent = make_cudaExtent(nx, ny, nz);
	in.kind = cudaMemcpyHostToDevice;
	CUDA(cudaMemcpy3D(&in));
	cudaMemcpy3DParms out = {};
	out.srcPtr = on_device;
	out.srcPos = make_cudaPos(1, 2, 3);
	out.dstPtr = make_cudaPitchedPtr(back.data(), nx, nx, ny);
	out.dstPos = make_cudaPos(1, 2, 3);
	out.extent = make_cudaExtent(nx - 1, ny - 2, nz - 3);
	out.kind = cudaMemcpyDeviceToHost;
	CUDA(cudaMemcpy3D(&out));
	for (size_t z = 0; z < nz; z++)
		for (size_t y = 0; y < ny; y++)
			for (size_t x = 0; x < nx; x++) {
				const size_t i = (z * ny + y) * nx + x;
				if (back[i] != (x >= 1 && y >= 2 && z >= 3 ? box[i] : 0))
					FAIL("box at %zu %zu %zu", x, y, z);
			}
	return passed();
}
