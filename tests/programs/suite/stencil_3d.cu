// Seven-point heat equation in three dimensions, in double, with a three-dimensional grid of
// three-dimensional blocks; edges are periodic.
#define PROGRAM "stencil_3d"
#include "check.h"

#include <utility>

struct Grid {
	int nx, ny, nz;

	__host__ __device__ int index(int x, int y, int z) const
	{
		return ((z + nz) % nz * ny + (y + ny) % ny) * nx + (x + nx) % nx;
	}

	__host__ __device__ double next(const double *in, int x, int y, int z) const
	{
		const double here = in[index(x, y, z)];
		const double around = in[index(x - 1, y, z)] + in[index(x + 1, y, z)] + in[index(x, y - 1, z)] +
				      in[index(x, y + 1, z)] + in[index(x, y, z - 1)] + in[index(x, y, z + 1)];
		return here + 0.1 * (around - 6.0 * here);
	}
};

__global__ void heat(const double *in, double *out, Grid grid)
{
	const int x = blockIdx.x * blockDim.x + threadIdx.x;
	const int y = blockIdx.y * blockDim.y + threadIdx.y;
	const int z = blockIdx.z * blockDim.z + threadIdx.z;
	if (x < grid.nx && y < grid.ny && z < grid.nz)
		out[grid.index(x, y, z)] = grid.next(in, x, y, z);
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 24, 3, 512);
	const Grid grid{size, size + 3, size - 1};
	const int cells = grid.nx * grid.ny * grid.nz, steps = 6;
	std::vector<double> now(cells), next(cells);
	for (int i = 0; i < cells; i++)
		now[i] = hash(i) * 0x1p-32;
	double *in = to_device(now), *out = device_array<double>(cells);
	const dim3 threads(8, 4, 3);
	const dim3 blocks((grid.nx + 7) / 8, (grid.ny + 3) / 4, (grid.nz + 2) / 3);
	for (int k = 0; k < steps; k++) {
		heat<<<blocks, threads>>>(in, out, grid);
		CUDA(cudaGetLastError());
		std::swap(in, out);
	}

	for (int k = 0; k < steps; k++) {
		for (int z = 0; z < grid.nz; z++)
			for (int y = 0; y < grid.ny; y++)
				for (int x = 0; x < grid.nx; x++)
					next[grid.index(x, y, z)] = grid.next(now.data(), x, y, z);
		now.swap(next);
	}
	const std::vector<double> result = to_host(in, cells);
	for (int i = 0; i < cells; i++)
		if (result[i] != now[i])
			FAIL("cell %d: %.17g instead of %.17g", i, result[i], now[i]);
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	std::printf("ok stencil_3d of %d x %d x %d cells, %d steps\n", grid.nx, grid.ny, grid.nz, steps);
}
