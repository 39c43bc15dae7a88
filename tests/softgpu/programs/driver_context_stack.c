/* The stack of current contexts, and what a destroyed one answers. */
#include "driver.h"

static CUcontext doomed;
static sem_t have, destroyed;

static void *keeps_it_current(void *unused)
{
	size_t bytes;

	CHECK(cuCtxSetCurrent(doomed));
	sem_post(&have);
	sem_wait(&destroyed);
	EXPECT(cuMemGetInfo(&bytes, &bytes), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	return unused;
}

int main(void)
{
	CUcontext primary, created, current;
	pthread_t thread;
	CUdeviceptr word;
	CUdevice device;
	size_t bytes;

	EXPECT(cuCtxGetCurrent(&current), CUDA_ERROR_NOT_INITIALIZED);
	CHECK(cuInit(0));
	EXPECT(cuMemGetInfo(&bytes, &bytes), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuCtxPopCurrent(&current), CUDA_ERROR_INVALID_CONTEXT);
	primary = begin();
	CHECK(cuCtxCreate(&created, 0, 0));
	CHECK(cuCtxGetCurrent(&current));
	REQUIRE(current == created);
	CHECK(cuCtxGetDevice(&device));
	REQUIRE_EQUAL(device, 0);
	CHECK(cuMemAlloc(&word, 4));
	CHECK(cuCtxPopCurrent(&current));
	REQUIRE(current == created);
	CHECK(cuCtxGetCurrent(&current));
	REQUIRE(current == primary);

	sem_init(&have, 0, 0);
	sem_init(&destroyed, 0, 0);
	doomed = created;
	REQUIRE(!pthread_create(&thread, NULL, keeps_it_current, NULL));
	sem_wait(&have);
	CHECK(cuCtxDestroy(created));
	sem_post(&destroyed);
	pthread_join(thread, NULL);
	EXPECT(cuCtxDestroy(created), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuCtxPushCurrent(created), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuCtxDestroy(primary), CUDA_ERROR_INVALID_CONTEXT);
	/* Its memory went with it. */
	EXPECT(cuMemFree(word), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
