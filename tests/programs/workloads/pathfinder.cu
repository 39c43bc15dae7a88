// PathFinder: the cheapest path from the bottom to the top of a grid, row by row, moving straight
// or diagonally.  A block advances several rows per launch in shared memory on a segment whose
// valid part shrinks by a cell on either side (ghost zones).  `--size` is the number of columns,
// `--iterations` the number of rows after the first.
#define PROGRAM "pathfinder"
#include "workload.h"

#include <algorithm>
#include <utility>

static const int THREADS = 256;
static const int ROWS = 20; // per launch, at most

__global__ void advance(const uint8_t *costs, const int *in, int *out, int columns, int rows)
{
	__shared__ int line[2][THREADS];
	const int useful = THREADS - 2 * rows, t = threadIdx.x;
	const int x = static_cast<int>(blockIdx.x) * useful - rows + t;
	const bool inside = x >= 0 && x < columns;
	int now = 0;
	// Beyond the grid everything is dearer than any path.
	line[0][t] = inside ? in[x] : INT32_MAX;
	__syncthreads();
	for (int row = 0; row < rows; row++, now ^= 1) {
		if (t > row && t < THREADS - 1 - row)
			line[now ^ 1][t] = inside ? min(line[now][t], min(line[now][t - 1], line[now][t + 1])) +
							    costs[static_cast<size_t>(row) * columns + x]
						  : INT32_MAX;
		__syncthreads();
	}
	if (inside && t >= rows && t < THREADS - rows)
		out[x] = line[now][t];
}

int main(int argc, char **argv)
{
	const Options options = parse(argc, argv, { 8192, 40 }, 1, 100000000);
	const int columns = options.size, rows = options.iterations;
	if (static_cast<double>(columns) * rows > 4e9)
		FAIL("%d columns and %d rows are more than 4e9 cells", columns, rows);
	std::vector<uint8_t> costs(static_cast<size_t>(columns) * rows);
	for (size_t i = 0; i < costs.size(); i++)
		costs[i] = hash(static_cast<uint32_t>(i)) % 10;
	std::vector<int> now(columns), next(columns);
	for (int x = 0; x < columns; x++)
		now[x] = hash(~x) % 10;

	Stopwatch watch;
	uint8_t *device_costs = to_device(costs);
	int *in = to_device(now), *out = device_array<int>(columns);
	watch.start();
	for (int done = 0; done < rows;) {
		const int steps = std::min(ROWS, rows - done), useful = THREADS - 2 * steps;
		advance<<<(columns + useful - 1) / useful, THREADS>>>(device_costs + static_cast<size_t>(done) * columns,
								      in, out, columns, steps);
		CUDA(cudaGetLastError());
		std::swap(in, out);
		done += steps;
	}
	watch.stop();

	for (int row = 0; row < rows; row++) {
		for (int x = 0; x < columns; x++) {
			int least = now[x];
			if (x > 0)
				least = std::min(least, now[x - 1]);
			if (x < columns - 1)
				least = std::min(least, now[x + 1]);
			next[x] = least + costs[static_cast<size_t>(row) * columns + x];
		}
		now.swap(next);
	}
	const std::vector<int> result = to_host(in, columns);
	for (int x = 0; x < columns; x++)
		if (result[x] != now[x])
			FAIL("column %d: %d instead of %d", x, result[x], now[x]);
	CUDA(cudaFree(device_costs));
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	report(options, watch);
}
