// HotSpot: temperatures of a chip from its power map by explicit steps of the heat equation.  A
// block computes several steps per launch on a tile whose valid part shrinks by a cell a step
// (ghost zones), so launches are rare and shared memory does the work.  Bit for bit in float.
// `--size` is the edge of the grid, `--iterations` the number of time steps.
#define PROGRAM "hotspot"
#include "workload.h"

#include <utility>

static const int TILE = 16;
static const int STEPS = 3; // per launch, at most; a tile's useful part is TILE - 2 STEPS wide

static const float AMBIENT = 80.0f;
static const float HEATING = 0.5f;      // step / heat capacity
static const float ACROSS = 0.125f;     // the same through the resistance between neighbours
static const float UPWARD = 0.015625f;  // ... and to the air

__host__ __device__ static float next_temperature(float here, float north, float south, float west, float east, float power)
{
	return here + (HEATING * power + ACROSS * ((north + south - 2.0f * here) + (west + east - 2.0f * here)) +
		       UPWARD * (AMBIENT - here));
}

/// Advances `in` by `steps` (at most STEPS) into `out`; cells outside the grid mirror the edge.
__global__ void advance(const float *in, const float *power, float *out, int size, int steps)
{
	__shared__ float tile[2][TILE][TILE];
	const int useful = TILE - 2 * steps;
	const int x = static_cast<int>(blockIdx.x) * useful - steps + static_cast<int>(threadIdx.x);
	const int y = static_cast<int>(blockIdx.y) * useful - steps + static_cast<int>(threadIdx.y);
	const bool inside = x >= 0 && x < size && y >= 0 && y < size;
	const int tx = threadIdx.x, ty = threadIdx.y;
	const float heat = inside ? power[y * size + x] : 0.0f;
	// Neighbours beyond the grid's edge are replaced by the cell itself.
	const int west = x > 0 ? tx - 1 : tx, east = x < size - 1 ? tx + 1 : tx;
	const int north = y > 0 ? ty - 1 : ty, south = y < size - 1 ? ty + 1 : ty;
	int now = 0;
	if (inside)
		tile[0][ty][tx] = in[y * size + x];
	__syncthreads();
	for (int step = 1; step <= steps; step++, now ^= 1) {
		if (inside && tx >= step && tx < TILE - step && ty >= step && ty < TILE - step)
			tile[now ^ 1][ty][tx] = next_temperature(tile[now][ty][tx], tile[now][north][tx],
								 tile[now][south][tx], tile[now][ty][west],
								 tile[now][ty][east], heat);
		__syncthreads();
	}
	if (inside && tx >= steps && tx < TILE - steps && ty >= steps && ty < TILE - steps)
		out[y * size + x] = tile[now][ty][tx];
}

int main(int argc, char **argv)
{
	const Options options = parse(argc, argv, { 128, 8 }, 1, 16384);
	const int size = options.size, cells = size * size;
	std::vector<float> now(cells), next(cells), power(cells);
	for (int i = 0; i < cells; i++) {
		now[i] = 320.0f + hash(i) % 32;
		power[i] = hash(~i) % 16 ? 0.0f : (hash(~i) >> 16) * 0x1p-14f; // few hot spots
	}
	Stopwatch watch;
	float *in = to_device(now), *out = device_array<float>(cells), *device_power = to_device(power);
	watch.start();
	for (int done = 0; done < options.iterations;) {
		const int steps = options.iterations - done < STEPS ? options.iterations - done : STEPS;
		const int useful = TILE - 2 * steps, blocks = (size + useful - 1) / useful;
		advance<<<dim3(blocks, blocks), dim3(TILE, TILE)>>>(in, device_power, out, size, steps);
		CUDA(cudaGetLastError());
		std::swap(in, out);
		done += steps;
	}
	watch.stop();

	for (int step = 0; step < options.iterations; step++) {
		for (int y = 0; y < size; y++)
			for (int x = 0; x < size; x++) {
				const float *cell = &now[y * size + x];
				next[y * size + x] = next_temperature(
					*cell, y > 0 ? cell[-size] : *cell, y < size - 1 ? cell[size] : *cell,
					x > 0 ? cell[-1] : *cell, x < size - 1 ? cell[1] : *cell, power[y * size + x]);
			}
		now.swap(next);
	}
	const std::vector<float> result = to_host(in, cells);
	for (int i = 0; i < cells; i++)
		if (result[i] != now[i])
			FAIL("cell (%d, %d): %.9g instead of %.9g", i % size, i / size, result[i], now[i]);
	for (float *array : {in, out, device_power})
		CUDA(cudaFree(array));
	report(options, watch);
}
