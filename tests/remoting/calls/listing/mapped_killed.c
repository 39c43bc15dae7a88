/* Pieces of pinned memory are made, mapped, used by kernels and copies, and released, in so many threads, while this
 * process or its server may be killed at any moment.  "ok": it was not; "lost": the server was, and from then on each call
 * said so, while what the host has is the host's.  What is registered is mapped too, where "files" is asked for. */
#define _GNU_SOURCE
#include "../calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROUNDS 4u
#define PIECES 3u

static const size_t sizes[PIECES] = { 4, 70000, 3u << 20 };
static bool files;

struct worker {
	CUcontext context;
	CUfunction store;
	unsigned *piece[PIECES];
	unsigned *file;
	bool lost;
};

static CUdeviceptr address_of(const void *memory)
{
	return (CUdeviceptr)(uintptr_t)memory;
}

/* Has the server gone?  No other error is any call's. */
static bool gone(struct worker *worker, int result, const char *call, int line)
{
	if (result == CUDA_SUCCESS)
		return false;
	if (result != CUDA_ERROR_DEVICE_UNAVAILABLE) {
		fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, line, call, result);
		exit(1);
	}
	worker->lost = true;
	return true;
}

#define DO(call) do { if (gone(worker, (call), #call, __LINE__)) return; } while (0)

static void used(struct worker *worker, CUstream stream, CUdeviceptr device, unsigned *piece, unsigned value)
{
	CUdeviceptr at = address_of(piece);
	void *parameters[] = { &at, &value };

	DO(cuLaunchKernel(worker->store, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
	DO(cuMemcpyHtoDAsync_v2(device, piece, 4, stream));
	DO(cuMemsetD32Async(at, 0, 1, stream));
	DO(cuMemcpyDtoHAsync_v2(piece, device, 4, stream));
	DO(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(*piece, value);
}

static void round_of(struct worker *worker, CUstream stream, CUdeviceptr device, unsigned round)
{
	for (unsigned i = 0; i < PIECES; i++) {
		void *memory;

		DO(cuMemHostAlloc(&memory, sizes[i], CU_MEMHOSTALLOC_DEVICEMAP));
		worker->piece[i] = memory;
		worker->piece[i][0] = i;
	}
	DO(cuMemHostRegister_v2(worker->file, 8192, files ? CU_MEMHOSTREGISTER_DEVICEMAP : 0));
	for (unsigned i = 0; i < PIECES && !worker->lost; i++)
		used(worker, stream, device, worker->piece[i], 10 * round + i);
	if (!worker->lost && files)
		used(worker, stream, device, worker->file, round);
	if (worker->lost)
		return;
	DO(cuMemcpyHtoD_v2(device, worker->piece[1], 70000));
	for (unsigned i = 0; i < PIECES; i++) {
		unsigned *piece = worker->piece[i];

		DO(cuMemFreeHost(piece));
		worker->piece[i] = NULL;
	}
	DO(cuMemHostUnregister(worker->file));
}

static void work(struct worker *worker)
{
	CUdeviceptr device = 0;
	CUstream stream;

	DO(cuCtxSetCurrent(worker->context));
	DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	DO(cuMemAlloc_v2(&device, 70000));
	for (unsigned round = 0; round < ROUNDS && !worker->lost; round++)
		round_of(worker, stream, device, round);
	if (worker->lost)
		return;
	DO(cuMemFree_v2(device));
	DO(cuStreamDestroy_v2(stream));
}

/* Behind a loss. */
static void check_lost(struct worker *worker)
{
	void *memory;

	EXPECT(cuMemHostAlloc(&memory, 4, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
	EXPECT(cuMemHostRegister_v2(worker->file, 4096, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
	for (unsigned i = 0; i < PIECES; i++) {
		if (!worker->piece[i])
			continue;
		memset(worker->piece[i], 9, sizes[i]);
		EXPECT(cuMemFreeHost(worker->piece[i]), CUDA_ERROR_DEVICE_UNAVAILABLE);
		REQUIRE_EQUAL(worker->piece[i][0], 0x09090909);
	}
	memset(worker->file, 9, 8192);
	EXPECT(cuMemHostUnregister(worker->file), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

static void *run(void *opaque)
{
	struct worker *worker = opaque;

	work(worker);
	if (worker->lost)
		check_lost(worker);
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
	struct worker workers[8] = { 0 }, *worker = workers;
	pthread_t threads[8];
	bool lost = false;
	CUmodule module;
	void (*begin)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "killing_begin");
	int result = cuInit(0), made = memfd_create("registered", MFD_CLOEXEC);

	files = argc > 2;
	REQUIRE(count <= 8 && ftruncate(made, (off_t)count * 8192) == 0);
	if (begin)
		begin();
	if (!result)
		result = cuDevicePrimaryCtxRetain(&worker->context, 0);
	if (!result)
		result = cuCtxSetCurrent(worker->context);
	if (!result)
		result = cuModuleLoadData(&module, code);
	if (!result)
		result = cuModuleGetFunction(&worker->store, module, "store");
	if (gone(worker, result, "the beginning", __LINE__)) {
		printf("lost\n");
		return 0;
	}
	for (unsigned i = 0; i < count; i++) {
		workers[i].context = worker->context;
		workers[i].store = worker->store;
		workers[i].file = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, made, (off_t)i * 8192);
		REQUIRE(workers[i].file != MAP_FAILED);
		REQUIRE(pthread_create(&threads[i], NULL, run, &workers[i]) == 0);
	}
	for (unsigned i = 0; i < count; i++) {
		pthread_join(threads[i], NULL);
		lost |= workers[i].lost;
	}
	printf(lost ? "lost\n" : "ok\n");
	return 0;
}
