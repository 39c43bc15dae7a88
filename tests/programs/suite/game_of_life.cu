// Conway's game of life on a torus, 32 cells to a word: neighbours are added with bitwise full
// adders, words wrap with funnel shifts.  The CPU counts cell by cell.
#define PROGRAM "game_of_life"
#include "check.h"

#include <utility>

__global__ void generation(const uint32_t *in, uint32_t *out, int words, int rows)
{
	const int word = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
	if (word >= words || row >= rows)
		return;
	uint32_t alive = 0, ones = 0, twos = 0, fours = 0;
	for (int dy = -1; dy <= 1; dy++) {
		const uint32_t *line = in + (row + dy + rows) % rows * words;
		const uint32_t here = line[word];
		const uint32_t left = __funnelshift_l(line[(word + words - 1) % words], here, 1);
		const uint32_t right = __funnelshift_r(here, line[(word + 1) % words], 1);
		if (dy == 0)
			alive = here;
		for (uint32_t cells : {left, dy == 0 ? 0u : here, right}) {
			const uint32_t carry = ones & cells;
			ones ^= cells;
			fours |= twos & carry;
			twos ^= carry;
		}
	}
	out[row * words + word] = (twos & ~fours) & (ones | alive);
}

int main(int argc, char **argv)
{
	const int size = size_option(argc, argv, 192, 32, 1 << 14);
	const int words = size / 32, width = words * 32, rows = size - 1, generations = 12;
	std::vector<uint32_t> packed(words * rows);
	std::vector<uint8_t> now(width * rows), next(width * rows);
	for (int i = 0; i < words * rows; i++)
		packed[i] = hash(i) & hash(~i);
	for (int i = 0; i < width * rows; i++)
		now[i] = packed[i / 32] >> i % 32 & 1;
	uint32_t *in = to_device(packed), *out = device_array<uint32_t>(packed.size());
	for (int k = 0; k < generations; k++) {
		generation<<<dim3((words + 7) / 8, (rows + 15) / 16), dim3(8, 16)>>>(in, out, words, rows);
		CUDA(cudaGetLastError());
		std::swap(in, out);
	}

	for (int k = 0; k < generations; k++) {
		for (int y = 0; y < rows; y++)
			for (int x = 0; x < width; x++) {
				int neighbours = 0;
				for (int dy = -1; dy <= 1; dy++)
					for (int dx = -1; dx <= 1; dx++)
						if (dx || dy)
							neighbours += now[(y + dy + rows) % rows * width +
									  (x + dx + width) % width];
				next[y * width + x] = neighbours == 3 || (neighbours == 2 && now[y * width + x]);
			}
		now.swap(next);
	}
	const std::vector<uint32_t> result = to_host(in, packed.size());
	int alive = 0;
	for (int i = 0; i < width * rows; i++) {
		if ((result[i / 32] >> i % 32 & 1) != now[i])
			FAIL("cell (%d, %d) should be %s", i % width, i / width, now[i] ? "alive" : "dead");
		alive += now[i];
	}
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
	std::printf("ok game_of_life of %d x %d, %d generations: %d alive\n", width, rows, generations, alive);
}
