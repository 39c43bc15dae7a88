/* heat.cu - heat spreads in a plate, on a GPU and on the processor, and both
 * must agree to the last bit.
 *
 * A plate of WIDTH x HEIGHT cells has a hot spot and cold edges.  In each step
 * a cell gives an eighth of the difference to each of its four neighbours.
 * The arithmetic is in 32-bit integers (temperatures in micro-degrees), so
 * that every machine, and every compiler's idea of fused multiplication,
 * gives the same numbers.
 *
 * Usage: heat [STEPS [PAUSE]]
 * PAUSE is how many milliseconds to rest after each picture, for people who watch.
 * Exit code: 0 when both agree, 1 when they differ, 2 for a CUDA error.
 */
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <unistd.h>

namespace {

constexpr int WIDTH = 256;
constexpr int HEIGHT = 160;
constexpr int CELLS = WIDTH * HEIGHT;
constexpr int HOT = 1000 * 1000 * 1000;
constexpr int PICTURES = 4;

void check(cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return;
	std::fprintf(stderr, "heat: %s: %s\n", what, cudaGetErrorString(error));
	std::exit(2);
}

__host__ __device__ int next_temperature(const int *plate, int x, int y)
{
	const int here = plate[y * WIDTH + x];

	if (x == 0 || y == 0 || x == WIDTH - 1 || y == HEIGHT - 1)
		return here;
	return here + (plate[y * WIDTH + x - 1] - here) / 8 + (plate[y * WIDTH + x + 1] - here) / 8 +
	       (plate[(y - 1) * WIDTH + x] - here) / 8 + (plate[(y + 1) * WIDTH + x] - here) / 8;
}

__global__ void step(const int *from, int *to)
{
	const int x = blockIdx.x * blockDim.x + threadIdx.x;
	const int y = blockIdx.y * blockDim.y + threadIdx.y;

	if (x < WIDTH && y < HEIGHT)
		to[y * WIDTH + x] = next_temperature(from, x, y);
}

std::vector<int> new_plate()
{
	std::vector<int> plate(CELLS, 0);

	for (int y = HEIGHT / 3; y < HEIGHT * 2 / 3; y++)
		for (int x = WIDTH / 3; x < WIDTH * 2 / 3; x++)
			plate[y * WIDTH + x] = HOT;
	return plate;
}

/* One character for 8 x 16 cells. */
void draw(const std::vector<int> &plate, int steps_done)
{
	static const char shades[] = " .:-=+*#%@";

	std::printf("after %d steps\n", steps_done);
	for (int y = 8; y < HEIGHT; y += 16) {
		std::printf("  |");
		for (int x = 4; x < WIDTH; x += 8)
			std::putchar(shades[static_cast<long>(plate[y * WIDTH + x]) * 9 / HOT]);
		std::printf("|\n");
	}
	std::fflush(stdout);
}

std::vector<int> on_processor(std::vector<int> plate, int steps)
{
	std::vector<int> other(CELLS);

	for (int i = 0; i < steps; i++) {
		for (int y = 0; y < HEIGHT; y++)
			for (int x = 0; x < WIDTH; x++)
				other[y * WIDTH + x] = next_temperature(plate.data(), x, y);
		std::swap(plate, other);
	}
	return plate;
}

} // namespace

int main(int argc, char **argv)
{
	const int steps = argc > 1 ? std::atoi(argv[1]) : 1000;
	const int pause = argc > 2 ? std::atoi(argv[2]) : 0;
	const dim3 block(32, 8), grid((WIDTH + 31) / 32, (HEIGHT + 7) / 8);
	const std::vector<int> start = new_plate();
	std::vector<int> plate(CELLS);
	cudaDeviceProp properties;
	int *from, *to, device, different = 0;

	if (steps < 1 || steps > 1000000 || pause < 0 || pause > 10000) {
		std::fprintf(stderr, "heat: STEPS must be from 1 to 1000000, PAUSE from 0 to 10000\n");
		return 2;
	}
	check(cudaGetDevice(&device), "cudaGetDevice");
	check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
	std::printf("running on %s\n", properties.name);
	check(cudaMalloc(&from, CELLS * sizeof *from), "cudaMalloc");
	check(cudaMalloc(&to, CELLS * sizeof *to), "cudaMalloc");
	check(cudaMemcpy(from, start.data(), CELLS * sizeof *from, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
	draw(start, 0);
	for (int picture = 1, done = 0; picture <= PICTURES; picture++) {
		for (; done < static_cast<long>(steps) * picture / PICTURES; done++) {
			step<<<grid, block>>>(from, to);
			std::swap(from, to);
		}
		check(cudaGetLastError(), "launch");
		check(cudaMemcpy(plate.data(), from, CELLS * sizeof *from, cudaMemcpyDeviceToHost),
		      "cudaMemcpy from the device");
		draw(plate, done);
		usleep(static_cast<useconds_t>(pause) * 1000);
	}
	check(cudaFree(from), "cudaFree");
	check(cudaFree(to), "cudaFree");

	const std::vector<int> expected = on_processor(start, steps);
	for (int i = 0; i < CELLS; i++)
		different += plate[i] != expected[i];
	if (different) {
		std::printf("WRONG: %d of %d cells differ from the processor's\n", different, CELLS);
		return 1;
	}
	std::printf("CORRECT: all %d cells are the same as the processor's after %d steps\n", CELLS, steps);
	return 0;
}
