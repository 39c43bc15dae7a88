// PathFinder: the cheapest path from the bottom to the top of a grid, row by row, moving straight
// or diagonally.  A block advances several rows per launch in shared memory on a segment whose
// valid part shrinks by a cell on either side (ghost zones).  `--size` is the number of columns,
// `--iterations` the number of rows after the first.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define FAIL(...) (std::printf("FAIL pathfinder " __VA_ARGS__), std::puts(""), std::exit(1))

#define CUDA(call)                                                                 \
	do {                                                                       \
		if (const cudaError_t error = (call))                              \
			FAIL("%s: %s", #call, cudaGetErrorString(error));          \
	} while (0)

struct Options {
	int size = 8192, iterations = 40;
	bool json = false;
};

static Options parse(int argc, char **argv)
{
	Options options;
	for (int i = 1; i < argc; i++) {
		const bool size = !std::strcmp(argv[i], "--size"), iterations = !std::strcmp(argv[i], "--iterations");
		if (!std::strcmp(argv[i], "--json")) {
			options.json = true;
		} else if ((size || iterations) && i + 1 < argc) {
			char *end;
			const long value = std::strtol(argv[++i], &end, 10);
			const long least = size ? 1 : 1, most = size ? 100000000 : 1000000;
			if (*end || end == argv[i] || value < least || value > most)
				FAIL("%s %s: must be from %ld to %ld", argv[i - 1], argv[i], least, most);
			(size ? options.size : options.iterations) = static_cast<int>(value);
		} else {
			FAIL("does not know %s; usage: %s [--size N] [--iterations N] [--json]", argv[i], argv[0]);
		}
	}
	return options;
}

/// Adds up the time that the device spends between start() and stop().
class Stopwatch {
public:
	Stopwatch()
	{
		CUDA(cudaEventCreate(&begin_));
		CUDA(cudaEventCreate(&end_));
	}

	void start() { CUDA(cudaEventRecord(begin_)); }

	void stop()
	{
		float milliseconds = 0;
		CUDA(cudaEventRecord(end_));
		CUDA(cudaEventSynchronize(end_));
		CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
		seconds_ += milliseconds / 1000.0;
	}

	double seconds() const { return seconds_; }

private:
	cudaEvent_t begin_ = nullptr, end_ = nullptr;
	double seconds_ = 0;
};

static void report(const Options &options, const Stopwatch &watch)
{
	if (options.json)
		std::printf("{\"name\": \"pathfinder\", \"size\": %d, \"iterations\": %d, \"kernel_seconds\": %.9f, "
			    "\"ok\": true}\n",
			    options.size, options.iterations, watch.seconds());
	else
		std::printf("ok pathfinder of size %d, %d iterations, kernels took %.6f s\n", options.size,
			    options.iterations, watch.seconds());
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
	const Options options = parse(argc, argv);
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
