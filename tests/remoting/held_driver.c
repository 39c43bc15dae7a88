/* A driver that says what it is asked, and in which the call that HELD_DRIVER_CALL names waits until
 * memory has been allocated once more.
 *
 * Linked to the driver: what is not defined here is found there.  Lines go to the FIFO that
 * HELD_DRIVER_LOG names: "NAME" when a call begins, "NAME is over" when the one that waits goes on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t allocated = PTHREAD_COND_INITIALIZER;
static unsigned allocations;

static void say(const char *what, const char *more)
{
	const char *path = getenv("HELD_DRIVER_LOG");
	int file = path ? open(path, O_WRONLY | O_CLOEXEC) : -1;

	if (file < 0)
		abort();
	dprintf(file, "%s%s\n", what, more);
	close(file);
}

static void begin(const char *name)
{
	const char *held = getenv("HELD_DRIVER_CALL");
	unsigned before;

	pthread_mutex_lock(&lock);
	before = allocations;
	pthread_mutex_unlock(&lock);
	say(name, "");
	if (!held || strcmp(held, name) != 0)
		return;
	pthread_mutex_lock(&lock);
	while (allocations == before)
		pthread_cond_wait(&allocated, &lock);
	pthread_mutex_unlock(&lock);
	say(name, " is over");
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
	int (*next)(unsigned long long *, size_t) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
	int result = next(address, bytes);

	pthread_mutex_lock(&lock);
	allocations++;
	pthread_cond_broadcast(&allocated);
	pthread_mutex_unlock(&lock);
	return result;
}

#define TOLD(name)						\
	int name(void *object)					\
	{							\
		int (*next)(void *) = dlsym(RTLD_NEXT, #name);	\
								\
		begin(#name);					\
		return next(object);				\
	}

/* These wait when the driver has done it. */
#define TOLD_BEHIND(name, parameters, arguments)		\
	int name parameters					\
	{							\
		int (*next)parameters = dlsym(RTLD_NEXT, #name);	\
		int result = next arguments;			\
								\
		begin(#name);					\
		return result;					\
	}

TOLD_BEHIND(cuMemUnmap, (unsigned long long address, size_t bytes), (address, bytes))
TOLD_BEHIND(cuMemSetAccess, (unsigned long long address, size_t bytes, const void *list, size_t count),
	    (address, bytes, list, count))
TOLD_BEHIND(cuMemPoolSetAccess, (void *pool, const void *list, size_t count), (pool, list, count))
TOLD_BEHIND(cuIpcGetMemHandle, (void *handle, unsigned long long address), (handle, address))
TOLD_BEHIND(cuMulticastUnbind, (unsigned long long team, int device, size_t offset, size_t bytes),
	    (team, device, offset, bytes))

TOLD(cuEventSynchronize)
TOLD(cuEventDestroy_v2)
TOLD(cuStreamSynchronize)
TOLD(cuStreamQuery)
TOLD(cuStreamDestroy_v2)
TOLD(cuCtxDestroy_v2)
TOLD(cuLibraryUnload)
TOLD(cuArrayDestroy)
