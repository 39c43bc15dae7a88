/* A driver that notes what the server asks of the one below it, and fails on demand.
 *
 * Linked to the driver: what is not defined here is found there.  Lines go to the
 * file that SPY_DRIVER_LOG names, one per call.  A copy to the host of REFUSED_BYTES
 * bytes is refused, and so are the SPY_DRIVER_REFUSES_LAUNCH-th launch of a graph and, with SPY_DRIVER_REFUSES_RETAIN,
 * what a graph is to keep.  A free of HELD_BYTES or more, and the end of a context, return after two
 * more allocations. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define REFUSED_BYTES 12344
#define HELD_BYTES (64ull << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t allocated = PTHREAD_COND_INITIALIZER;
static unsigned allocations;

static void note(const char *what, int result)
{
	const char *path = getenv("SPY_DRIVER_LOG");
	FILE *file = path ? fopen(path, "a") : NULL;

	if (!file)
		return;
	pthread_mutex_lock(&lock);
	fprintf(file, "%s %d\n", what, result);
	fclose(file);
	pthread_mutex_unlock(&lock);
}

static void *below(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

int cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
	int (*next)(void *, size_t, unsigned) = below("cuMemHostRegister_v2");
	int result = next(address, bytes, flags);

	note("register", result);
	return result;
}

int cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
	int (*next)(void **, size_t, unsigned) = below("cuMemHostAlloc");
	int result = next(address, bytes, flags);

	note("allocate", result);
	return result;
}

int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
	int (*next)(void **, unsigned, int) = below("cuCtxCreate_v2");
	int result = next(context, flags, device);

	note("make context", result);
	return result;
}

int cuCtxSynchronize(void)
{
	int (*next)(void) = below("cuCtxSynchronize");
	int result = next();

	note("synchronize", result);
	return result;
}

int cuMemcpyDtoHAsync_v2(void *host, unsigned long long device, size_t bytes, void *stream)
{
	int (*next)(void *, unsigned long long, size_t, void *) = below("cuMemcpyDtoHAsync_v2");
	int result = bytes == REFUSED_BYTES ? 1 : next(host, device, bytes, stream);

	if (bytes == REFUSED_BYTES)
		note("refuse", result);
	return result;
}

int cuGraphLaunch(void *executable, void *stream)
{
	static unsigned launches;	/* frames are served one after the other */
	int (*next)(void *, void *) = below("cuGraphLaunch");
	const char *refused = getenv("SPY_DRIVER_REFUSES_LAUNCH");

	return refused && ++launches == (unsigned)atoi(refused) ? 2 : next(executable, stream);
}

int cuUserObjectCreate(void **object, void *pointer, void *destructor, unsigned count, unsigned flags)
{
	int (*next)(void **, void *, void *, unsigned, unsigned) = below("cuUserObjectCreate");
	int result = next(object, pointer, destructor, count, flags);

	note("make object", result);
	return result;
}

int cuUserObjectRelease(void *object, unsigned count)
{
	int (*next)(void *, unsigned) = below("cuUserObjectRelease");
	int result = next(object, count);

	note("release object", result);
	return result;
}

int cuGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags)
{
	int (*next)(void *, void *, unsigned, unsigned) = below("cuGraphRetainUserObject");

	return getenv("SPY_DRIVER_REFUSES_RETAIN") ? 2 : next(graph, object, count, flags);
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
	int (*next)(unsigned long long *, size_t) = below("cuMemAlloc_v2");
	int result = next(address, bytes);

	pthread_mutex_lock(&lock);
	allocations++;
	pthread_cond_broadcast(&allocated);
	pthread_mutex_unlock(&lock);
	return result;
}

static unsigned allocations_now(void)
{
	unsigned now;

	pthread_mutex_lock(&lock);
	now = allocations;
	pthread_mutex_unlock(&lock);
	return now;
}

static void await_two_more(unsigned before)
{
	pthread_mutex_lock(&lock);
	while (allocations - before < 2)
		pthread_cond_wait(&allocated, &lock);
	pthread_mutex_unlock(&lock);
}

int cuCtxDestroy_v2(void *context)
{
	int (*next)(void *) = below("cuCtxDestroy_v2");
	unsigned before = allocations_now();
	int result = next(context);

	note("destroy", result);
	await_two_more(before);
	return result;
}

int cuMemFree_v2(unsigned long long address)
{
	int (*range)(unsigned long long *, size_t *, unsigned long long) =
		below("cuMemGetAddressRange_v2");
	int (*next)(unsigned long long) = below("cuMemFree_v2");
	unsigned long long base;
	size_t bytes = 0;
	unsigned before = allocations_now();
	int result;

	range(&base, &bytes, address);
	result = next(address);
	if (bytes >= HELD_BYTES) {
		note("free", result);
		await_two_more(before);
	}
	return result;
}

#define DESTROYING(name)					\
	int name(unsigned long long object)			\
	{							\
		int (*next)(unsigned long long) = below(#name);	\
		int result = next(object);			\
								\
		note(#name, result);				\
		return result;					\
	}

DESTROYING(cuArrayDestroy)
DESTROYING(cuMipmappedArrayDestroy)
DESTROYING(cuTexObjectDestroy)
DESTROYING(cuSurfObjectDestroy)
