/* A driver that is as strict as NVIDIA's (seen with driver 580), or may be: one thread calls all host functions, one after the
 * other, and while one of them runs or waits for its turn, memory can't be allocated, pinned or given back, code not be loaded,
 * and (which was not seen) no stream or event be made: such calls wait.  What comes behind many host functions of one stream
 * waits for room.  Asked about the legacy stream, it says nothing of others for which that would wait.  The parameters of kernels
 * are told in a context only, and some attributes of a module's functions when these have been loaded.
 *
 * Linked to the driver: what is not defined here is found there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID_CONTEXT = 201, NOT_READY = 600, FUNCTION_NOT_LOADED = 913, MAX_THREADS_PER_BLOCK = 0 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned long next_turn, turn;	/* host functions have turns; those from `turn` to `next_turn` are there */

/* Stays for good: a captured one runs as often as its graph does. */
struct host_function {
	void (*function)(void *argument);
	void *argument;
	struct queue *queue;
};

/* Host functions of a stream that have not returned, of which there is room for so many. */
#define QUEUED_MOST 16u

static struct queue {
	void *stream;
	unsigned queued;
} queues[64];	/* streams that had host functions; of more than these there is room */
static unsigned queue_count;

/* With the lock; NULL: there is none. */
static struct queue *queue_of(void *stream, bool make)
{
	for (unsigned i = 0; i < queue_count; i++)
		if (queues[i].stream == stream)
			return &queues[i];
	if (!make || queue_count == sizeof(queues) / sizeof(queues[0]))
		return NULL;
	queues[queue_count].stream = stream;
	return &queues[queue_count++];
}

/* Something has been put into the legacy stream since that was last idle. */
static bool legacy_used;

/* Before something is put into a stream. */
static void stream_use(void *stream)
{
	struct queue *queue;

	pthread_mutex_lock(&lock);
	queue = queue_of(stream, false);
	while (queue && queue->queued >= QUEUED_MOST)
		pthread_cond_wait(&changed, &lock);
	legacy_used = legacy_used || !stream;
	pthread_mutex_unlock(&lock);
}

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
	if (host->queue && host->queue->queued)
		host->queue->queued--;
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
	stream_use(stream);
	host->function = function;
	host->argument = argument;
	pthread_mutex_lock(&lock);
	host->queue = queue_of(stream, true);
	if (host->queue)
		host->queue->queued++;
	pthread_mutex_unlock(&lock);
	result = next(stream, in_turn, host);
	pthread_mutex_lock(&lock);
	if (result && host->queue)
		host->queue->queued--;
	pthread_mutex_unlock(&lock);
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

int cuStreamQuery(void *stream)
{
	int (*next)(void *) = dlsym(RTLD_NEXT, "cuStreamQuery");
	int result = next(stream);

	pthread_mutex_lock(&lock);
	if (!stream && result == SUCCESS)
		legacy_used = false;
	else if (!stream && result == NOT_READY && !legacy_used)
		result = SUCCESS;
	pthread_mutex_unlock(&lock);
	return result;
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
WAITS(cuStreamCreate, (void **stream, unsigned flags), stream, flags)
WAITS(cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority), stream, flags, priority)
WAITS(cuEventCreate, (void **event, unsigned flags), event, flags)

#define USES(name, parameters, stream, ...)			\
	int name parameters					\
	{							\
		int (*next) parameters = dlsym(RTLD_NEXT, #name); \
								\
		stream_use(stream);				\
		return next(__VA_ARGS__);			\
	}

USES(cuLaunchKernel, (void *function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y, unsigned block_z,
     unsigned shared, void *stream, void **parameters, void **extra), stream, function, x, y, z, block_x, block_y, block_z,
     shared, stream, parameters, extra)
USES(cuEventRecord, (void *event, void *stream), stream, event, stream)
USES(cuStreamWaitEvent, (void *stream, void *event, unsigned flags), stream, stream, event, flags)
USES(cuMemcpyHtoDAsync_v2, (unsigned long long to, const void *from, size_t bytes, void *stream), stream, to, from, bytes, stream)
USES(cuMemcpyDtoHAsync_v2, (void *to, unsigned long long from, size_t bytes, void *stream), stream, to, from, bytes, stream)
USES(cuMemcpyDtoDAsync_v2, (unsigned long long to, unsigned long long from, size_t bytes, void *stream), stream, to, from, bytes,
     stream)
USES(cuMemcpy2DAsync_v2, (const void *rows, void *stream), stream, rows, stream)
USES(cuMemcpy3DAsync_v2, (const void *box, void *stream), stream, box, stream)
USES(cuMemcpyAsync, (unsigned long long to, unsigned long long from, size_t bytes, void *stream), stream, to, from, bytes, stream)
USES(cuMemcpyPeerAsync, (unsigned long long to, void *there, unsigned long long from, void *here, size_t bytes, void *stream),
     stream, to, there, from, here, bytes, stream)
USES(cuMemsetD8Async, (unsigned long long to, unsigned char value, size_t count, void *stream), stream, to, value, count, stream)
USES(cuMemsetD16Async, (unsigned long long to, unsigned short value, size_t count, void *stream), stream, to, value, count, stream)
USES(cuMemsetD32Async, (unsigned long long to, unsigned value, size_t count, void *stream), stream, to, value, count, stream)
USES(cuMemsetD2D8Async, (unsigned long long to, size_t pitch, unsigned char value, size_t width, size_t height, void *stream),
     stream, to, pitch, value, width, height, stream)
USES(cuMemsetD2D16Async, (unsigned long long to, size_t pitch, unsigned short value, size_t width, size_t height, void *stream),
     stream, to, pitch, value, width, height, stream)
USES(cuMemsetD2D32Async, (unsigned long long to, size_t pitch, unsigned value, size_t width, size_t height, void *stream),
     stream, to, pitch, value, width, height, stream)
/* How a launch is told: struct CUlaunchConfig begins so. */
struct launch {
	unsigned grid[3], block[3], shared;
	void *stream;
};
USES(cuLaunchKernelEx, (const struct launch *launch, void *function, void **parameters, void **extra), launch->stream, launch,
     function, parameters, extra)
USES(cuGraphLaunch, (void *graph, void *stream), stream, graph, stream)
