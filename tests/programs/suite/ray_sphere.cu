// Nearest intersections of camera rays with many spheres, in float with / and sqrtf, which are
// correctly rounded: hits and distances agree with the CPU bit for bit.
#define PROGRAM "ray_sphere"
#include "check.h"

#include <cmath>

struct Sphere {
	float3 centre;
	float radius;
};

struct Hit {
	int sphere;
	float distance;
};

__host__ __device__ static float dot(const float3 &a, const float3 &b)
{
	return a.x * b.x + a.y * b.y + a.z * b.z;
}

__host__ __device__ static Hit trace(int column, int row, int size, const Sphere *spheres, int count)
{
	float3 ray = make_float3((2.0f * column - size) / size, (2.0f * row - size) / size, 1.5f);
	const float inverse = 1.0f / sqrtf(dot(ray, ray));
	ray = make_float3(ray.x * inverse, ray.y * inverse, ray.z * inverse);
	Hit nearest = {-1, 1e30f};
	for (int i = 0; i < count; i++) {
		const float3 &centre = spheres[i].centre;
		const float along = dot(ray, centre);
		const float square = along * along - dot(centre, centre) + spheres[i].radius * spheres[i].radius;
		if (square < 0.0f)
			continue;
		const float distance = along - sqrtf(square);
		if (distance > 0.0f && distance < nearest.distance)
			nearest = {i, distance};
	}
	return nearest;
}

__global__ void render(const Sphere *spheres, int count, Hit *hits, int size)
{
	const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
	if (column < size && row < size)
		hits[row * size + column] = trace(column, row, size, spheres, count);
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 80, 1, 8192);
	const int count = 40;
	std::vector<Sphere> spheres(count);
	for (int i = 0; i < count; i++) {
		spheres[i].centre = make_float3(8.0f * (hash(4 * i) * 0x1p-32f - 0.5f),
						8.0f * (hash(4 * i + 1) * 0x1p-32f - 0.5f),
						4.0f + 6.0f * (hash(4 * i + 2) * 0x1p-32f));
		spheres[i].radius = 0.2f + hash(4 * i + 3) * 0x1p-32f;
	}
	Sphere *device_spheres = to_device(spheres);
	Hit *device_hits = device_array<Hit>(size * size);
	render<<<dim3((size + 15) / 16, (size + 7) / 8), dim3(16, 8)>>>(device_spheres, count, device_hits, size);
	CUDA(cudaGetLastError());

	const std::vector<Hit> hits = to_host(device_hits, size * size);
	int hit = 0;
	for (int i = 0; i < size * size; i++) {
		const Hit expected = trace(i % size, i / size, size, spheres.data(), count);
		if (hits[i].sphere != expected.sphere || hits[i].distance != expected.distance)
			FAIL("pixel (%d, %d): sphere %d at %.9g instead of %d at %.9g", i % size, i / size,
			     hits[i].sphere, hits[i].distance, expected.sphere, expected.distance);
		hit += expected.sphere >= 0;
	}
	CUDA(cudaFree(device_spheres));
	CUDA(cudaFree(device_hits));
	std::printf("ok ray_sphere of %d x %d rays, %d spheres: %d hits\n", size, size, count, hit);
}
