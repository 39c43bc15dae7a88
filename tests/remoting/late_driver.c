/* A driver that makes copies as late as a driver may: those in streams that wait for no other (CU_STREAM_NON_BLOCKING) when
 * somebody waits for them, or for an event behind them.  Until then a look at the stream says that it is not ready.  So
 * whoever gives memory back, or reads it, before the copy is over is found out.
 *
 * LATE_FAILS=N: the N-th of them can't be begun.
 *
 * Linked to the driver: what is not defined here is found there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_READY = 600, NON_BLOCKING = 1 };

#define NEXT(name, type) ((type)dlsym(RTLD_NEXT, name))

struct copy {
	struct copy *next;
	void *stream, *event;		/* an event that was recorded here, if it is none */
	void *host;
	unsigned long long device;
	size_t bytes;
	int to_device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct copy *first, **last = &first;	/* in the order in which they were begun */
static void *streams[64];
static unsigned stream_count, begun;

static int is_late(void *stream)
{
	for (unsigned i = 0; i < stream_count; i++)
		if (streams[i] == stream)
			return 1;
	return 0;
}

static void append(struct copy copy)
{
	struct copy *kept = malloc(sizeof(*kept));

	if (!kept)
		abort();
	*kept = copy;
	kept->next = NULL;
	*last = kept;
	last = &kept->next;
}

/* What was put into the stream, up to the event (NULL: all), is done now. */
static int settle(void *stream, void *event)
{
	int (*to_device)(unsigned long long, const void *, size_t) = dlsym(RTLD_NEXT, "cuMemcpyHtoD_v2");
	int (*to_host)(void *, unsigned long long, size_t) = dlsym(RTLD_NEXT, "cuMemcpyDtoH_v2");
	struct copy **link = &first;
	int result = SUCCESS, over = 0;

	while (*link && !over && result == SUCCESS) {
		struct copy *copy = *link;

		if (copy->stream != stream) {
			link = &copy->next;
			continue;
		}
		over = event && copy->event == event;
		if (copy->bytes)
			result = copy->to_device ? to_device(copy->device, copy->host, copy->bytes)
						 : to_host(copy->host, copy->device, copy->bytes);
		*link = copy->next;
		free(copy);
	}
	for (last = &first; *last; last = &(*last)->next)
		;
	return result;
}

int cuStreamCreate(void **stream, unsigned flags)
{
	int result = NEXT("cuStreamCreate", int (*)(void **, unsigned))(stream, flags);

	pthread_mutex_lock(&lock);
	if (result == SUCCESS && flags & NON_BLOCKING && stream_count < sizeof(streams) / sizeof(streams[0]))
		streams[stream_count++] = *stream;
	pthread_mutex_unlock(&lock);
	return result;
}

static int begin(void *stream, struct copy copy)
{
	const char *fails = getenv("LATE_FAILS");
	int late;

	pthread_mutex_lock(&lock);
	late = is_late(stream);
	if (late && fails && ++begun == (unsigned)atoi(fails))
		late = -1;
	if (late > 0)
		append(copy);
	pthread_mutex_unlock(&lock);
	return late;
}

int cuMemcpyHtoDAsync_v2(unsigned long long device, const void *host, size_t bytes, void *stream)
{
	int late = begin(stream, (struct copy){ .stream = stream, .host = (void *)host, .device = device,
						.bytes = bytes, .to_device = 1 });

	if (late)
		return late < 0 ? INVALID_VALUE : SUCCESS;
	return NEXT("cuMemcpyHtoDAsync_v2", int (*)(unsigned long long, const void *, size_t, void *))(
		device, host, bytes, stream);
}

int cuMemcpyDtoHAsync_v2(void *host, unsigned long long device, size_t bytes, void *stream)
{
	int late = begin(stream, (struct copy){ .stream = stream, .host = host, .device = device, .bytes = bytes });

	if (late)
		return late < 0 ? INVALID_VALUE : SUCCESS;
	return NEXT("cuMemcpyDtoHAsync_v2", int (*)(void *, unsigned long long, size_t, void *))(host, device, bytes,
												 stream);
}

int cuStreamQuery(void *stream)
{
	int waits = 0;

	pthread_mutex_lock(&lock);
	for (struct copy *copy = first; copy; copy = copy->next)
		waits |= copy->stream == stream;
	pthread_mutex_unlock(&lock);
	return waits ? NOT_READY : NEXT("cuStreamQuery", int (*)(void *))(stream);
}

int cuStreamSynchronize(void *stream)
{
	int result;

	pthread_mutex_lock(&lock);
	result = settle(stream, NULL);
	pthread_mutex_unlock(&lock);
	return result ? result : NEXT("cuStreamSynchronize", int (*)(void *))(stream);
}

int cuEventRecord(void *event, void *stream)
{
	pthread_mutex_lock(&lock);
	/* What was recorded before is forgotten. */
	for (struct copy *copy = first; copy; copy = copy->next)
		if (copy->event == event)
			copy->event = NULL;
	if (is_late(stream))
		append((struct copy){ .stream = stream, .event = event });
	pthread_mutex_unlock(&lock);
	return NEXT("cuEventRecord", int (*)(void *, void *))(event, stream);
}

int cuEventQuery(void *event)
{
	int waits = 0;

	pthread_mutex_lock(&lock);
	for (struct copy *copy = first; copy; copy = copy->next)
		waits |= copy->event == event;
	pthread_mutex_unlock(&lock);
	return waits ? NOT_READY : NEXT("cuEventQuery", int (*)(void *))(event);
}

int cuEventSynchronize(void *event)
{
	void *stream = NULL;
	int result = SUCCESS;

	pthread_mutex_lock(&lock);
	for (struct copy *copy = first; copy; copy = copy->next)
		if (copy->event == event)
			stream = copy->stream;
	if (stream)
		result = settle(stream, event);
	pthread_mutex_unlock(&lock);
	return result ? result : NEXT("cuEventSynchronize", int (*)(void *))(event);
}
