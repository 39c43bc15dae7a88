/* softgpu_bench - how fast a libcuda that executes PTX on the processor is.
 *
 *	softgpu_bench [--quick] [--processor-time] LIBCUDA
 *
 * prints "NAME VALUE UNIT" for each measurement.  The library is opened by its path, so
 * that two builds can be compared.  Each value is the median of several runs, after one
 * that is not counted; with --processor-time it is the least time that all threads
 * together took, which other work on the machine changes little.  Exit status 2 when
 * the library lacks what a measurement needs.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* bench/softgpu_kernels.ptx, with a NUL behind it */
__asm__(".section .rodata\n"
	"kernels_ptx: .incbin \"bench/softgpu_kernels.ptx\"\n"
	".byte 0\n"
	".previous\n");
extern const char kernels_ptx[];

typedef uint64_t device_pointer;
typedef void *handle;

static struct {
	int (*cuInit)(unsigned);
	int (*cuDeviceGet)(int *, int);
	int (*cuDevicePrimaryCtxRetain)(handle *, int);
	int (*cuCtxSetCurrent)(handle);
	int (*cuCtxSynchronize)(void);
	int (*cuModuleLoadData)(handle *, const void *);
	int (*cuModuleUnload)(handle);
	int (*cuModuleGetFunction)(handle *, handle, const char *);
	int (*cuMemAlloc_v2)(device_pointer *, size_t);
	int (*cuMemcpyHtoD_v2)(device_pointer, const void *, size_t);
	int (*cuLaunchKernel)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			      unsigned, handle, void **, void **);
	/* Of graphs, which not every build has. */
	int (*cuStreamCreate)(handle *, unsigned);
	int (*cuStreamDestroy_v2)(handle);
	int (*cuStreamBeginCapture_v2)(handle, int);
	int (*cuStreamEndCapture)(handle, handle *);
	int (*cuGraphInstantiateWithFlags)(handle *, handle, unsigned long long);
	int (*cuGraphLaunch)(handle, handle);
	int (*cuGraphExecDestroy)(handle);
	int (*cuGraphDestroy)(handle);
} cu;

static const struct {
	const char *name;
	void *pointer;
} symbols[] = {
#define SYMBOL(name) { #name, &cu.name }
	SYMBOL(cuInit), SYMBOL(cuDeviceGet), SYMBOL(cuDevicePrimaryCtxRetain),
	SYMBOL(cuCtxSetCurrent), SYMBOL(cuCtxSynchronize), SYMBOL(cuModuleLoadData),
	SYMBOL(cuModuleUnload), SYMBOL(cuModuleGetFunction), SYMBOL(cuMemAlloc_v2),
	SYMBOL(cuMemcpyHtoD_v2), SYMBOL(cuLaunchKernel),
}, graph_symbols[] = {
	SYMBOL(cuStreamCreate), SYMBOL(cuStreamDestroy_v2), SYMBOL(cuStreamBeginCapture_v2),
	SYMBOL(cuStreamEndCapture), SYMBOL(cuGraphInstantiateWithFlags), SYMBOL(cuGraphLaunch),
	SYMBOL(cuGraphExecDestroy), SYMBOL(cuGraphDestroy),
};

#define GRAPH_KERNELS 100	/* nodes of the graph that is measured */
#define STREAM_NON_BLOCKING 1
#define CAPTURE_RELAXED 2

static void check(int code, const char *what)
{
	if (!code)
		return;
	fprintf(stderr, "softgpu_bench: %s: error %d\n", what, code);
	exit(1);
}
#define CU(call) check(cu.call, #call)

static clockid_t measured_clock = CLOCK_MONOTONIC;

static double now_us(void)
{
	struct timespec now;

	clock_gettime(measured_clock, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double typical(double *times, unsigned count)
{
	qsort(times, count, sizeof times[0], compare);
	return times[measured_clock == CLOCK_MONOTONIC ? count / 2 : 0];
}

struct measurement {
	const char *name, *kernel;
	unsigned grid_x, grid_y, block_x, block_y;
	int n;			/* the kernel's size parameter */
	unsigned pointers;	/* parameters before n */
	unsigned launches;	/* in a run, one after the other */
	unsigned runs;
	int per_launch;		/* report microseconds a launch, else milliseconds a run */
};

static handle module;
static device_pointer buffers[3];

static double median_run(const struct measurement *m)
{
	double times[64];
	handle function;
	int n = m->n;
	void *params[4];

	CU(cuModuleGetFunction(&function, module, m->kernel));
	for (unsigned k = 0; k < m->pointers; k++)
		params[k] = &buffers[k];
	params[m->pointers] = &n;
	for (unsigned run = 0; run <= m->runs; run++) {
		double start = now_us();

		for (unsigned k = 0; k < m->launches; k++)
			CU(cuLaunchKernel(function, m->grid_x, m->grid_y, 1, m->block_x, m->block_y, 1,
					  0, NULL, params, NULL));
		CU(cuCtxSynchronize());
		if (run)	/* the first one warms up */
			times[run - 1] = now_us() - start;
	}
	return typical(times, m->runs);
}

static void measure(const struct measurement *m)
{
	double us = median_run(m);

	if (m->per_launch)
		printf("%s %.3f us\n", m->name, us / m->launches);
	else
		printf("%s %.4f ms\n", m->name, us / 1e3);
	fflush(stdout);
}

/* An empty kernel GRAPH_KERNELS times: launched one by one, and as a graph. */
static void measure_graph(void)
{
	double launches[31], graphs[31];
	handle stream, graph, executable, function;
	int n = 0;
	void *params[] = { &n };

	if (!cu.cuGraphLaunch)
		return;
	CU(cuModuleGetFunction(&function, module, "empty"));
	CU(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
	if (cu.cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED)) {
		CU(cuStreamDestroy_v2(stream));
		return;
	}
	for (unsigned k = 0; k < GRAPH_KERNELS; k++)
		CU(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
	CU(cuStreamEndCapture(stream, &graph));
	CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
	/* In turn, so that a machine whose speed drifts treats both alike; the first warms up. */
	for (unsigned run = 0; run <= 31; run++) {
		double start = now_us(), middle;

		for (unsigned k = 0; k < GRAPH_KERNELS; k++)
			CU(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
		CU(cuCtxSynchronize());
		middle = now_us();
		CU(cuGraphLaunch(executable, stream));
		CU(cuCtxSynchronize());
		if (run) {
			launches[run - 1] = middle - start;
			graphs[run - 1] = now_us() - middle;
		}
	}
	printf("launch_100_us %.3f us\n", typical(launches, 31));
	printf("graph_100_us %.3f us\n", typical(graphs, 31));
	CU(cuGraphExecDestroy(executable));
	CU(cuGraphDestroy(graph));
	CU(cuStreamDestroy_v2(stream));
}

static void measure_load(void)
{
	double times[21];

	for (unsigned k = 0; k < 21; k++) {
		double start = now_us();
		handle loaded;

		CU(cuModuleLoadData(&loaded, kernels_ptx));
		times[k] = now_us() - start;
		CU(cuModuleUnload(loaded));
	}
	printf("module_load %.4f ms\n", typical(times, 21) / 1e3);
}

/* How far the time between two events is from what it takes to run what is between
 * them, by the wall clock from the launch on. */
static void measure_events(void *library, const struct measurement *m)
{
	int (*create)(handle *, unsigned), (*record)(handle, handle);
	int (*elapsed)(float *, handle, handle);
	void *params[] = { &buffers[0], &buffers[1], NULL };
	double errors[15];
	handle function, from, to;
	int n = m->n;

	memcpy(&create, &(void *){ dlsym(library, "cuEventCreate") }, sizeof create);
	memcpy(&record, &(void *){ dlsym(library, "cuEventRecord") }, sizeof record);
	memcpy(&elapsed, &(void *){ dlsym(library, "cuEventElapsedTime") }, sizeof elapsed);
	if (!create || !record || !elapsed)
		return;
	params[2] = &n;
	CU(cuModuleGetFunction(&function, module, m->kernel));
	if (create(&from, 0) || create(&to, 0))
		return;
	for (unsigned run = 0; run < 15; run++) {
		double start = now_us(), wall;
		float ms = 0;

		check(record(from, NULL), "cuEventRecord");
		for (unsigned k = 0; k < m->launches; k++)
			CU(cuLaunchKernel(function, m->grid_x, m->grid_y, 1, m->block_x, m->block_y, 1,
					  0, NULL, params, NULL));
		check(record(to, NULL), "cuEventRecord");
		CU(cuCtxSynchronize());
		wall = now_us() - start;
		check(elapsed(&ms, from, to), "cuEventElapsedTime");
		errors[run] = 100 * (ms * 1e3 > wall ? ms * 1e3 - wall : wall - ms * 1e3) / wall;
	}
	qsort(errors, 15, sizeof errors[0], compare);
	printf("event_time_error %.3f percent\n", errors[7]);
}

static void *open_library(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		fprintf(stderr, "softgpu_bench: %s\n", dlerror());
		exit(2);
	}
	for (size_t k = 0; k < sizeof symbols / sizeof symbols[0]; k++) {
		void *address = dlsym(library, symbols[k].name);

		if (!address) {
			fprintf(stderr, "softgpu_bench: %s has no %s\n", path, symbols[k].name);
			exit(2);
		}
		memcpy(symbols[k].pointer, &address, sizeof address);
	}
	for (size_t k = 0; k < sizeof graph_symbols / sizeof graph_symbols[0]; k++) {
		void *address = dlsym(library, graph_symbols[k].name);

		memcpy(graph_symbols[k].pointer, &address, sizeof address);
	}
	return library;
}

static void prepare(int matrix)
{
	size_t count = (size_t)matrix * matrix > (1u << 20) ? (size_t)matrix * matrix : 1u << 20;
	float *values = malloc(count * sizeof *values);
	handle context;
	int device;

	if (!values)
		check(1, "malloc");
	for (size_t k = 0; k < count; k++)
		values[k] = (float)(k * 2654435761u % 1000) / 1000;
	CU(cuInit(0));
	CU(cuDeviceGet(&device, 0));
	CU(cuDevicePrimaryCtxRetain(&context, device));
	CU(cuCtxSetCurrent(context));
	CU(cuModuleLoadData(&module, kernels_ptx));
	for (unsigned k = 0; k < 3; k++) {
		CU(cuMemAlloc_v2(&buffers[k], count * sizeof *values));
		CU(cuMemcpyHtoD_v2(buffers[k], values, count * sizeof *values));
	}
	free(values);
}

int main(int count, char **words)
{
	int quick = count > 2 && !strcmp(words[1], "--quick");
	int by_processor = count > 2 + quick && !strcmp(words[1 + quick], "--processor-time");
	int matrix = quick ? 128 : 1024, side = quick ? 256 : 1024;
	unsigned tiles_32 = (unsigned)matrix / 32, tiles_16 = (unsigned)matrix / 16;
	unsigned heavy = quick ? 1 : 5;
	const struct measurement measurements[] = {
		{ "empty_launch_us", "empty", 1, 1, 32, 1, 0, 0, 1, 63, 1 },
		{ "empty_launch_64x256_us", "empty", 64, 1, 256, 1, 0, 0, 1, 63, 1 },
		{ "queued_launch_us", "empty", 1, 1, 32, 1, 0, 0, 1000, 7, 1 },
		{ "vector_add", "vector_add", 4096, 1, 256, 1, 1 << 20, 3, 1, 15, 0 },
		{ "stencil", "stencil", (unsigned)side / 32, (unsigned)side / 8, 32, 8, side, 2, 10,
		  heavy, 0 },
		{ "matmul_tile_32", "matmul_32", tiles_32, tiles_32, 32, 32, matrix, 3, 1, heavy, 0 },
		{ "matmul_tile_16", "matmul_16", tiles_16, tiles_16, 16, 16, matrix, 3, 1, heavy, 0 },
		{ "reduce", "reduce", 64, 1, 256, 1, 1 << 20, 2, 1, 15, 0 },
		{ "histogram", "histogram", 64, 1, 256, 1, 1 << 20, 2, 1, 9, 0 },
		{ "collatz", "collatz", 512, 1, 128, 1, 1 << 16, 1, 1, heavy, 0 },
		{ "transcendental", "transcendental", 1024, 1, 256, 1, 1 << 18, 2, 1, heavy, 0 },
	};

	void *library;

	if (count != 2 + quick + by_processor) {
		fprintf(stderr, "usage: softgpu_bench [--quick] [--processor-time] LIBCUDA\n");
		return 1;
	}
	if (by_processor)
		measured_clock = CLOCK_PROCESS_CPUTIME_ID;
	library = open_library(words[count - 1]);
	prepare(matrix);
	for (size_t k = 0; k < sizeof measurements / sizeof measurements[0]; k++)
		measure(&measurements[k]);
	measure_graph();
	measure_load();
	if (!by_processor)
		measure_events(library, &measurements[4]);
	return 0;
}
