/* A driver that is as strict as NVIDIA's (seen with driver 580): one thread calls all host functions, one after the
 * other, and while one of them runs or waits for its turn, memory can't be allocated, pinned or given back, nor code loaded:
 * such calls wait.  The parameters of kernels are told in a context only, and some attributes of a module's functions
 * when these have been loaded.
 *
 * Linked to the driver: what is not defined here is found there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

enum { INVALID_CONTEXT = 201, FUNCTION_NOT_LOADED = 913, MAX_THREADS_PER_BLOCK = 0 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned long next_turn, turn;	/* host functions have turns; those from `turn` to `next_turn` are there */

/* Stays for good: a captured one runs as often as its graph does. */
struct host_function {
	void (*function)(void *argument);
	void *argument;
};

static void in_turn(void *opaque)
{
	struct host_function *host = opaque;
	unsigned long mine;

	pthread_mutex_lock(&lock);
	mine = next_turn++;
	while (turn != mine)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	host->function(host->argument);
	pthread_mutex_lock(&lock);
	turn++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

int cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument)
{
	int (*next)(void *, void (*)(void *), void *) = dlsym(RTLD_NEXT, "cuLaunchHostFunc");
	struct host_function *host = malloc(sizeof(*host));
	int result;

	if (!host)
		abort();
	host->function = function;
	host->argument = argument;
	result = next(stream, in_turn, host);
	if (result)
		free(host);
	return result;
}

static void await_host_functions(void)
{
	pthread_mutex_lock(&lock);
	while (turn != next_turn)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

int cuKernelGetParamInfo(void *kernel, size_t index, size_t *offset, size_t *bytes)
{
	int (*next)(void *, size_t, size_t *, size_t *) = dlsym(RTLD_NEXT, "cuKernelGetParamInfo");
	int (*current)(void **) = dlsym(RTLD_NEXT, "cuCtxGetCurrent");
	void *context = NULL;

	current(&context);
	return context ? next(kernel, index, offset, bytes) : INVALID_CONTEXT;
}

/* Functions that were loaded, at most so many. */
static void *loaded[64];
static unsigned loaded_count;

static int is_loaded(void *function)
{
	int found = 0;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < loaded_count && !found; i++)
		found = loaded[i] == function;
	pthread_mutex_unlock(&lock);
	return found;
}

int cuFuncLoad(void *function)
{
	int (*next)(void *) = dlsym(RTLD_NEXT, "cuFuncLoad");

	pthread_mutex_lock(&lock);
	if (loaded_count < sizeof(loaded) / sizeof(loaded[0]))
		loaded[loaded_count++] = function;
	pthread_mutex_unlock(&lock);
	return next(function);
}

int cuFuncGetAttribute(int *value, int attribute, void *function)
{
	int (*next)(int *, int, void *) = dlsym(RTLD_NEXT, "cuFuncGetAttribute");

	return attribute == MAX_THREADS_PER_BLOCK && !is_loaded(function) ? FUNCTION_NOT_LOADED
									  : next(value, attribute, function);
}

#define WAITS(name, parameters, ...)				\
	int name parameters					\
	{							\
		int (*next) parameters = dlsym(RTLD_NEXT, #name); \
								\
		await_host_functions();				\
		return next(__VA_ARGS__);			\
	}

WAITS(cuMemAlloc_v2, (unsigned long long *address, size_t bytes), address, bytes)
WAITS(cuMemFree_v2, (unsigned long long address), address)
WAITS(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags), memory, bytes, flags)
WAITS(cuMemFreeHost, (void *memory), memory)
WAITS(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags), memory, bytes, flags)
WAITS(cuMemHostUnregister, (void *memory), memory)
WAITS(cuModuleLoadDataEx, (void **module, const void *image, unsigned count, void *options, void *values), module, image,
      count, options, values)
WAITS(cuLibraryLoadData, (void **library, const void *code, void *options, void *values, unsigned count, void *others,
      void *other_values, unsigned other_count), library, code, options, values, count, others, other_values, other_count)
