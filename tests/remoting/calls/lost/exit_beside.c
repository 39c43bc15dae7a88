/* The program ends while other threads call CUDA: none is told an error, which could have ended the program with it. */
#include "../calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define THREADS 8

static CUcontext context;
static CUdeviceptr memory;
static atomic_int calling;

static void *call(void *unused)
{
	(void)unused;
	CHECK(cuCtxSetCurrent(context));
	for (;;) {
		if (cuMemsetD8Async(memory, 1, 4096, NULL) || cuStreamQuery(NULL) == CUDA_ERROR_DEINITIALIZED ||
		    cuStreamSynchronize(NULL))
			_exit(1);
		atomic_fetch_add(&calling, 1);
	}
	return NULL;
}

int main(void)
{
	pthread_t thread;

	context = begin();
	CHECK(cuMemAlloc_v2(&memory, 4096));
	for (int i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&thread, NULL, call, NULL));
	while (atomic_load(&calling) < 10 * THREADS)
		;
	return 5;
}
