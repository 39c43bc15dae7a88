// Gravitation of all pairs of bodies in float, positions staged through shared memory, leapfrog
// steps.  1 / sqrtf is correctly rounded (unlike rsqrtf) and terms are added in the order of the
// bodies, so the CPU agrees bit for bit.
#define PROGRAM "nbody"
#include "check.h"

#include <cmath>

static const int THREADS = 64;
static const float SOFTENING = 0.01f;
static const float STEP = 0.001f;

/// Adds to `pull` the acceleration that body `b` (position, mass) gives at position `a`.
__host__ __device__ static void attract(const float4 &a, const float4 &b, float3 &pull)
{
	const float dx = b.x - a.x, dy = b.y - a.y, dz = b.z - a.z;
	const float square = dx * dx + dy * dy + dz * dz + SOFTENING;
	const float inverse = 1.0f / sqrtf(square);
	const float scale = b.w * inverse * inverse * inverse;
	pull.x += dx * scale;
	pull.y += dy * scale;
	pull.z += dz * scale;
}

__host__ __device__ static void move(float4 &position, float3 &speed, const float3 &pull)
{
	speed.x += STEP * pull.x;
	speed.y += STEP * pull.y;
	speed.z += STEP * pull.z;
	position.x += STEP * speed.x;
	position.y += STEP * speed.y;
	position.z += STEP * speed.z;
}

__global__ void step(const float4 *in, float4 *out, float3 *speeds, int count)
{
	__shared__ float4 tile[THREADS];
	const int i = blockIdx.x * THREADS + threadIdx.x;
	float4 here = in[min(i, count - 1)];
	float3 pull = make_float3(0, 0, 0);
	for (int first = 0; first < count; first += THREADS) {
		if (first + threadIdx.x < count)
			tile[threadIdx.x] = in[first + threadIdx.x];
		__syncthreads();
		for (int k = 0; k < min(THREADS, count - first); k++)
			attract(here, tile[k], pull);
		__syncthreads();
	}
	if (i < count) {
		move(here, speeds[i], pull);
		out[i] = here;
	}
}

int main(int argc, char **argv)
{
	const int count = size_option(argc, argv, 500, 1, 1 << 20);
	const int steps = 4;
	std::vector<float4> bodies(count), moved(count);
	std::vector<float3> speeds(count, make_float3(0, 0, 0));
	for (int i = 0; i < count; i++)
		bodies[i] = make_float4(hash(4 * i) * 0x1p-32f, hash(4 * i + 1) * 0x1p-32f, hash(4 * i + 2) * 0x1p-32f,
					1.0f + (hash(4 * i + 3) >> 30));
	float4 *in = to_device(bodies), *out = device_array<float4>(count);
	float3 *device_speeds = to_device(speeds);
	for (int k = 0; k < steps; k++) {
		step<<<(count + THREADS - 1) / THREADS, THREADS>>>(in, out, device_speeds, count);
		CUDA(cudaGetLastError());
		float4 *const previous = in;
		in = out;
		out = previous;
	}

	for (int k = 0; k < steps; k++) {
		for (int i = 0; i < count; i++) {
			float3 pull = make_float3(0, 0, 0);
			for (int other = 0; other < count; other++)
				attract(bodies[i], bodies[other], pull);
			moved[i] = bodies[i];
			move(moved[i], speeds[i], pull);
		}
		bodies.swap(moved);
	}
	const std::vector<float4> result = to_host(in, count);
	for (int i = 0; i < count; i++)
		if (std::memcmp(&result[i], &bodies[i], sizeof(float4)))
			FAIL("body %d: (%.9g, %.9g, %.9g) instead of (%.9g, %.9g, %.9g)", i, result[i].x, result[i].y,
			     result[i].z, bodies[i].x, bodies[i].y, bodies[i].z);
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	CUDA(cudaFree(device_speeds));
	std::printf("ok nbody of %d bodies, %d steps\n", count, steps);
}
