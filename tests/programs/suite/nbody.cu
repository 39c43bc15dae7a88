// Gravitation of all pairs of bodies in float, positions staged through shared memory, leapfrog
// steps.  1 / sqrtf is correctly rounded (unlike rsqrtf) and terms are added in the order of the
// bodies, so the CPU agrees bit for bit.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FAIL(...) (std::printf("FAIL nbody " __VA_ARGS__), std::puts(""), std::exit(1))

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
