/* What programs of plain CUDA do with a GPU, timed: one line of JSON for each workload.
 *
 *     kernels [DIVISOR [PART]...]
 *
 * {"name": ..., "seconds": [...], "digest": ...}: seconds of the calling thread per piece of work, one value for each repetition,
 * and what the results add up to, which must not depend on the way to the GPU.  {"name": ..., "at": ...}: CLOCK_MONOTONIC's seconds
 * when the first kernel had run.  DIVISOR makes everything smaller; PART is work, calls or copies (default: all three). */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#define REPETITIONS 15
#define TILE 32

static void check(cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return;
	fprintf(stderr, "kernels: %s: %s\n", what, cudaGetErrorString(error));
	exit(1);
}
#define CHECK(call) check(call, #call)

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* FNV-1a over 32-bit words. */
static uint64_t digest(const std::vector<float> &values)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (float value : values) {
		uint32_t word;

		memcpy(&word, &value, sizeof(word));
		hash = (hash ^ word) * 0x100000001b3ull;
	}
	return hash;
}

static void report(const char *name, const std::vector<double> &seconds, uint64_t hash)
{
	printf("{\"name\": \"%s\", \"seconds\": [", name);
	for (size_t i = 0; i < seconds.size(); i++)
		printf("%s%.9g", i ? ", " : "", seconds[i]);
	printf("], \"digest\": \"%016llx\"}\n", (unsigned long long)hash);
	fflush(stdout);
}

static std::vector<float> noise(size_t count, uint32_t seed)
{
	std::vector<float> values(count);

	for (float &value : values) {
		seed = seed * 1664525u + 1013904223u;
		value = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
	}
	return values;
}

__global__ void nothing(void)
{
}

/* In one thread at a time: launches in one stream come one after another. */
__global__ void count_up(unsigned *counter)
{
	++*counter;
}

__global__ void add(const float *a, const float *b, float *sum, size_t count)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;

	if (i < count)
		sum[i] = a[i] + b[i];
}

__global__ void multiply(const float *a, const float *b, float *product, int size)
{
	__shared__ float left[TILE][TILE], right[TILE][TILE];
	int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
	float sum = 0;

	for (int tile = 0; tile < size; tile += TILE) {
		left[threadIdx.y][threadIdx.x] = a[(size_t)row * size + tile + threadIdx.x];
		right[threadIdx.y][threadIdx.x] = b[(size_t)(tile + threadIdx.y) * size + column];
		__syncthreads();
		for (int k = 0; k < TILE; k++)
			sum += left[threadIdx.y][k] * right[k][threadIdx.x];
		__syncthreads();
	}
	product[(size_t)row * size + column] = sum;
}

static std::vector<double> repeated(int pieces, const std::function<void(void)> &work)
{
	std::vector<double> seconds;

	for (int i = 0; i <= REPETITIONS; i++) {
		double begin = now();

		work();
		/* The first one loads code and wakes the device. */
		if (i)
			seconds.push_back((now() - begin) / pieces);
	}
	return seconds;
}

static void vector_add(size_t count)
{
	const size_t bytes = count * sizeof(float);
	std::vector<float> a = noise(count, 1), b = noise(count, 2), sum(count);
	float *on_device[3];

	for (float *&memory : on_device)
		CHECK(cudaMalloc(&memory, bytes));
	report("vectorAdd, copies and kernel", repeated(1, [&] {
		CHECK(cudaMemcpy(on_device[0], a.data(), bytes, cudaMemcpyHostToDevice));
		CHECK(cudaMemcpy(on_device[1], b.data(), bytes, cudaMemcpyHostToDevice));
		add<<<(unsigned)((count + 255) / 256), 256>>>(on_device[0], on_device[1], on_device[2], count);
		CHECK(cudaMemcpy(sum.data(), on_device[2], bytes, cudaMemcpyDeviceToHost));
	}), digest(sum));
	report("vectorAdd, kernel", repeated(20, [&] {
		for (int i = 0; i < 20; i++)
			add<<<(unsigned)((count + 255) / 256), 256>>>(on_device[0], on_device[1], on_device[2], count);
		CHECK(cudaDeviceSynchronize());
	}), digest(sum));
	for (float *memory : on_device)
		CHECK(cudaFree(memory));
}

static void matrix_product(int size)
{
	const size_t count = (size_t)size * size, bytes = count * sizeof(float);
	std::vector<float> a = noise(count, 3), b = noise(count, 4), product(count);
	const dim3 grid(size / TILE, size / TILE), block(TILE, TILE);
	float *on_device[3];

	for (float *&memory : on_device)
		CHECK(cudaMalloc(&memory, bytes));
	CHECK(cudaMemcpy(on_device[0], a.data(), bytes, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(on_device[1], b.data(), bytes, cudaMemcpyHostToDevice));
	std::vector<double> seconds = repeated(1, [&] {
		multiply<<<grid, block>>>(on_device[0], on_device[1], on_device[2], size);
		CHECK(cudaDeviceSynchronize());
	});
	CHECK(cudaMemcpy(product.data(), on_device[2], bytes, cudaMemcpyDeviceToHost));
	report("matrix product in tiles", seconds, digest(product));
	for (float *memory : on_device)
		CHECK(cudaFree(memory));
}

static void tiny_kernels(int count)
{
	std::vector<double> launched;

	std::vector<double> all = repeated(count, [&] {
		double begin = now();

		for (int i = 0; i < count; i++)
			nothing<<<1, 1>>>();
		launched.push_back((now() - begin) / count);
		CHECK(cudaDeviceSynchronize());
	});
	launched.erase(launched.begin());
	report("tiny kernels, calling thread", launched, 0);
	report("tiny kernels, until all have run", all, 0);
	/* As many as no queue of the driver's fills. */
	launched.clear();
	repeated(1, [&] {
		double begin = now();

		for (int i = 0; i < 100; i++)
			nothing<<<1, 1>>>();
		launched.push_back((now() - begin) / 100);
		CHECK(cudaDeviceSynchronize());
	});
	launched.erase(launched.begin());
	report("100 tiny kernels, calling thread", launched, 0);
	report("launch and wait", repeated(1, [&] {
		nothing<<<1, 1>>>();
		CHECK(cudaDeviceSynchronize());
	}), 0);
}

/* Kernels that leave something to see: each of them has run once, whoever launched it. */
static void counting_kernels(int count)
{
	unsigned counted[2], *counters;
	cudaStream_t streams[2];
	std::vector<double> launched, all;

	CHECK(cudaMalloc(&counters, sizeof(counted)));
	CHECK(cudaMemset(counters, 0, sizeof(counted)));
	for (cudaStream_t &stream : streams)
		CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CHECK(cudaDeviceSynchronize());

	auto launch = [&](int which) {
		for (int i = 0; i < count; i++)
			count_up<<<1, 1, 0, streams[which]>>>(counters + which);
		CHECK(cudaGetLastError());
	};
	auto so_far = [&] {
		CHECK(cudaMemcpy(counted, counters, sizeof(counted), cudaMemcpyDeviceToHost));
		return (uint64_t)counted[0] << 32 | counted[1];
	};

	all = repeated(count, [&] {
		double begin = now();

		launch(0);
		launched.push_back((now() - begin) / count);
		CHECK(cudaDeviceSynchronize());
	});
	launched.erase(launched.begin());
	report("kernels that count, calling thread", launched, so_far());
	report("kernels that count, until all have run", all, so_far());
	all = repeated(count, [&] {
		std::thread other(launch, 1);

		launch(0);
		other.join();
		CHECK(cudaDeviceSynchronize());
	});
	report("the same by each of two threads", all, so_far());
	for (cudaStream_t stream : streams)
		CHECK(cudaStreamDestroy(stream));
	CHECK(cudaFree(counters));
}

/* Calls that are answered, each by itself. */
static void answered_calls(int count)
{
	unsigned value = 0, *on_device;
	cudaStream_t stream;

	CHECK(cudaMalloc(&on_device, sizeof(value)));
	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	report("cudaStreamQuery", repeated(count, [&] {
		for (int i = 0; i < count; i++)
			CHECK(cudaStreamQuery(stream));
	}), 0);
	report("cudaDeviceSynchronize", repeated(count, [&] {
		for (int i = 0; i < count; i++)
			CHECK(cudaDeviceSynchronize());
	}), 0);
	std::vector<double> to_device = repeated(count, [&] {
		for (int i = 0; i < count; i++) {
			value++;
			CHECK(cudaMemcpy(on_device, &value, sizeof(value), cudaMemcpyHostToDevice));
		}
	});
	value = 0;
	std::vector<double> to_host = repeated(count, [&] {
		for (int i = 0; i < count; i++)
			CHECK(cudaMemcpy(&value, on_device, sizeof(value), cudaMemcpyDeviceToHost));
	});
	report("4 bytes to the device", to_device, value);
	report("4 bytes to the host", to_host, value);
	report("cudaMalloc of 1 MiB and cudaFree", repeated(count, [&] {
		for (int i = 0; i < count; i++) {
			void *memory;

			CHECK(cudaMalloc(&memory, 1 << 20));
			CHECK(cudaFree(memory));
		}
	}), 0);
	CHECK(cudaStreamDestroy(stream));
	CHECK(cudaFree(on_device));
}

/* Of noise, which nobody who compresses gains by. */
static void copies(size_t bytes, bool pinned)
{
	const std::vector<float> sent = noise(bytes / sizeof(float), 5);
	std::vector<double> seconds[2];
	char name[64];
	void *host, *device;

	CHECK(cudaMalloc(&device, bytes));
	if (pinned)
		CHECK(cudaMallocHost(&host, bytes));
	else
		host = malloc(bytes);
	memcpy(host, sent.data(), bytes);
	for (int to_host = 0; to_host < 2; to_host++) {
		seconds[to_host] = repeated(1, [&] {
			CHECK(to_host ? cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost) :
					cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
			CHECK(cudaDeviceSynchronize());
		});
		if (!to_host)
			memset(host, 0, bytes);
	}
	for (int to_host = 0; to_host < 2; to_host++) {
		snprintf(name, sizeof(name), "%s %zu KiB, %s", to_host ? "d2h" : "h2d", bytes >> 10, pinned ? "pinned" : "pageable");
		report(name, seconds[to_host], !memcmp(host, sent.data(), bytes));
	}
	if (pinned)
		CHECK(cudaFreeHost(host));
	else
		free(host);
	CHECK(cudaFree(device));
}

static bool chosen(const char *part, char **parts)
{
	bool all = !*parts;

	for (; *parts; parts++)
		all |= !strcmp(*parts, part);
	return all;
}

int main(int argc, char **argv)
{
	const int divisor = argc > 1 ? atoi(argv[1]) : 1;
	char **parts = argv + (argc > 1 ? 2 : 1);

	if (divisor < 1) {
		fprintf(stderr, "usage: kernels [DIVISOR [work] [calls] [copies]], DIVISOR a whole number from 1\n");
		return 2;
	}
	nothing<<<1, 1>>>();
	CHECK(cudaDeviceSynchronize());
	printf("{\"name\": \"exec to first kernel\", \"at\": %.9f}\n", now());
	if (chosen("work", parts)) {
		vector_add(((size_t)16 << 20) / divisor);
		matrix_product((4096 / divisor + TILE - 1) / TILE * TILE);
	}
	if (chosen("calls", parts)) {
		tiny_kernels((10000 + divisor - 1) / divisor);
		counting_kernels((10000 + divisor - 1) / divisor);
		answered_calls((200 + divisor - 1) / divisor);
	}
	if (chosen("copies", parts))
		for (size_t bytes = 4 << 10; bytes <= 256u << 20; bytes *= 64 / 4)
			for (int pinned = 0; pinned < 2; pinned++)
				copies(bytes / divisor > 4096 ? bytes / divisor : 4096, pinned);
	return 0;
}
