// Shortest paths of all pairs, blocked Floyd-Warshall: the diagonal tile, then its row and
// column, then the rest (Venkataraman, Sahni and Mukhopadhyaya, 2003).
#define PROGRAM "floyd_warshall"
#include "check.h"

static const int TILE = 16;
static const int FAR = 1 << 28; // no path; two of them still fit an int

__device__ static void relax(int (*to)[TILE], int (*left)[TILE], int (*right)[TILE])
{
	for (int k = 0; k < TILE; k++) {
		__syncthreads();
		const int through = left[threadIdx.y][k] + right[k][threadIdx.x];
		__syncthreads();
		to[threadIdx.y][threadIdx.x] = min(to[threadIdx.y][threadIdx.x], through);
	}
}

__global__ void diagonal(int *distance, int size, int step)
{
	__shared__ int tile[TILE][TILE];
	int *cell = &distance[(step * TILE + threadIdx.y) * size + step * TILE + threadIdx.x];
	tile[threadIdx.y][threadIdx.x] = *cell;
	relax(tile, tile, tile);
	*cell = tile[threadIdx.y][threadIdx.x];
}

__global__ void row_and_column(int *distance, int size, int step)
{
	__shared__ int tile[TILE][TILE], pivot[TILE][TILE];
	if (blockIdx.x == step)
		return;
	const int tile_x = blockIdx.y ? step : blockIdx.x, tile_y = blockIdx.y ? blockIdx.x : step;
	int *cell = &distance[(tile_y * TILE + threadIdx.y) * size + tile_x * TILE + threadIdx.x];
	tile[threadIdx.y][threadIdx.x] = *cell;
	pivot[threadIdx.y][threadIdx.x] = distance[(step * TILE + threadIdx.y) * size + step * TILE + threadIdx.x];
	if (blockIdx.y)
		relax(tile, tile, pivot);
	else
		relax(tile, pivot, tile);
	*cell = tile[threadIdx.y][threadIdx.x];
}

__global__ void rest(int *distance, int size, int step)
{
	__shared__ int left[TILE][TILE], right[TILE][TILE];
	if (blockIdx.x == step || blockIdx.y == step)
		return;
	const int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
	left[threadIdx.y][threadIdx.x] = distance[y * size + step * TILE + threadIdx.x];
	right[threadIdx.y][threadIdx.x] = distance[(step * TILE + threadIdx.y) * size + x];
	__syncthreads();
	int shortest = distance[y * size + x];
	for (int k = 0; k < TILE; k++)
		shortest = min(shortest, left[threadIdx.y][k] + right[k][threadIdx.x]);
	distance[y * size + x] = shortest;
}

int main(int argc, char **argv)
{
	const int asked = size_option(argc, argv, 100, 1, 8192);
	const int tiles = (asked + TILE - 1) / TILE, size = tiles * TILE;
	std::vector<int> distance(size * size, FAR);
	for (int from = 0; from < size; from++) {
		distance[from * size + from] = 0;
		if (from < asked)
			for (uint32_t k = 0; k < 4; k++) {
				const int to = hash(from * 4 + k) % asked;
				if (to != from)
					distance[from * size + to] = 1 + hash(~(from * 4 + k)) % 100;
			}
	}
	int *device_distance = to_device(distance);
	const dim3 threads(TILE, TILE);
	for (int step = 0; step < tiles; step++) {
		diagonal<<<1, threads>>>(device_distance, size, step);
		row_and_column<<<dim3(tiles, 2), threads>>>(device_distance, size, step);
		rest<<<dim3(tiles, tiles), threads>>>(device_distance, size, step);
		CUDA(cudaGetLastError());
	}

	const std::vector<int> result = to_host(device_distance, size * size);
	for (int k = 0; k < size; k++)
		for (int from = 0; from < size; from++)
			for (int to = 0; to < size; to++) {
				const int through = distance[from * size + k] + distance[k * size + to];
				if (through < distance[from * size + to])
					distance[from * size + to] = through;
			}
	long long sum = 0;
	for (int i = 0; i < size * size; i++) {
		if (result[i] != distance[i])
			FAIL("from %d to %d: %d instead of %d", i / size, i % size, result[i], distance[i]);
		sum += distance[i] < FAR ? distance[i] : 0;
	}
	CUDA(cudaFree(device_distance));
	std::printf("ok floyd_warshall of %d nodes, distances sum to %lld\n", asked, sum);
}
