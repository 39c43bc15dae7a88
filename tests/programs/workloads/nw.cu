// Needleman-Wunsch: global alignment of two sequences.  The score matrix is filled in tiles of
// 16 x 16, a launch per diagonal of tiles; within a tile, threads go along its diagonals in shared
// memory.  The alignment is traced back on the CPU.  `--size` is the length of the sequences
// (rounded up to 16), `--iterations` the number of alignments.
#define PROGRAM "nw"
#include "workload.h"

#include <algorithm>
#include <string>

static const int TILE = 16;
static const int GAP = -10;
static const int LETTERS = 20;

/// A symmetric table of scores in the range of the usual ones for proteins.
__host__ __device__ static int score(int a, int b)
{
	const int low = a < b ? a : b, high = a < b ? b : a;
	return a == b ? 4 + a % 4 : static_cast<int>(hash(high * LETTERS + low) % 8) - 5;
}

/// Tiles (first + i, diagonal - first - i) of the matrix, i being the block.
__global__ void fill(int *matrix, const uint8_t *a, const uint8_t *b, int size, int diagonal, int first)
{
	__shared__ int cell[TILE + 1][TILE + 1];
	__shared__ int scores[TILE][TILE];
	const int tile_y = first + blockIdx.x, tile_x = diagonal - tile_y;
	const int pitch = size + 1, k = threadIdx.x;
	int *corner = matrix + static_cast<size_t>(tile_y) * TILE * pitch + tile_x * TILE;
	cell[k + 1][0] = corner[(k + 1) * pitch];
	cell[0][k + 1] = corner[k + 1];
	if (k == 0)
		cell[0][0] = corner[0];
	for (int row = 0; row < TILE; row++)
		scores[row][k] = score(a[tile_y * TILE + row], b[tile_x * TILE + k]);
	for (int d = 0; d < 2 * TILE - 1; d++) {
		__syncthreads();
		const int y = d - k;
		if (y >= 0 && y < TILE)
			cell[y + 1][k + 1] = max(cell[y][k] + scores[y][k], max(cell[y][k + 1], cell[y + 1][k]) + GAP);
	}
	__syncthreads();
	for (int row = 0; row < TILE; row++)
		corner[(row + 1) * pitch + k + 1] = cell[row + 1][k + 1];
}

int main(int argc, char **argv)
{
	Options options = parse(argc, argv, { 256, 1 }, 16, 16384);
	options.size = (options.size + TILE - 1) / TILE * TILE;
	const int size = options.size, pitch = size + 1, tiles = size / TILE;
	std::vector<uint8_t> a(size), b(size);
	for (int i = 0; i < size; i++) {
		a[i] = hash(i) % LETTERS;
		// Like `a` with changed letters and, in the middle, an inserted one.
		b[i] = hash(~i) % 3 ? a[i > size / 2 ? i - 1 : i] : hash(~i) / 3 % LETTERS;
	}
	std::vector<int> expected(static_cast<size_t>(pitch) * pitch);
	for (int i = 0; i <= size; i++)
		expected[i] = expected[static_cast<size_t>(i) * pitch] = i * GAP;

	Stopwatch watch;
	uint8_t *device_a = to_device(a), *device_b = to_device(b);
	int *matrix = device_array<int>(expected.size());
	for (int iteration = 0; iteration < options.iterations; iteration++) {
		CUDA(cudaMemcpy(matrix, expected.data(), expected.size() * sizeof(int), cudaMemcpyHostToDevice));
		watch.start();
		for (int diagonal = 0; diagonal < 2 * tiles - 1; diagonal++) {
			const int first = std::max(0, diagonal - tiles + 1), last = std::min(diagonal, tiles - 1);
			fill<<<last - first + 1, TILE>>>(matrix, device_a, device_b, size, diagonal, first);
			CUDA(cudaGetLastError());
		}
		watch.stop();
	}

	for (int y = 1; y <= size; y++)
		for (int x = 1; x <= size; x++) {
			const int *cell = &expected[static_cast<size_t>(y) * pitch + x];
			expected[static_cast<size_t>(y) * pitch + x] =
				std::max(cell[-pitch - 1] + score(a[y - 1], b[x - 1]), std::max(cell[-pitch], cell[-1]) + GAP);
		}
	const std::vector<int> found = to_host(matrix, expected.size());
	for (size_t i = 0; i < expected.size(); i++)
		if (found[i] != expected[i])
			FAIL("cell (%zu, %zu): %d instead of %d", i % pitch, i / pitch, found[i], expected[i]);

	// The alignment that the matrix implies must have the score of its last cell.
	int total = 0, y = size, x = size;
	while (y > 0 || x > 0) {
		const int *cell = &found[static_cast<size_t>(y) * pitch + x];
		if (y > 0 && x > 0 && *cell == cell[-pitch - 1] + score(a[y - 1], b[x - 1])) {
			total += score(a[--y], b[--x]);
		} else {
			total += GAP;
			if (y > 0 && *cell == cell[-pitch] + GAP)
				y--;
			else
				x--;
		}
	}
	if (total != found.back())
		FAIL("the alignment scores %d instead of %d", total, found.back());
	CUDA(cudaFree(device_a));
	CUDA(cudaFree(device_b));
	CUDA(cudaFree(matrix));
	report(options, watch);
}
