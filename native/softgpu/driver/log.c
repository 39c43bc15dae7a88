#define _GNU_SOURCE
#include "log.h"

#include "device.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOG_LINES 100u	/* as many as NVIDIA's driver keeps */
/* Of a line that is longer (names of kernels are) the log has the beginning. */
#define LOG_LINE_BYTES 1024u

struct CUlogsCallbackEntry_st {
	struct CUlogsCallbackEntry_st *next;
	CUlogsCallback function;
	void *opaque;
};

static struct {
	pthread_mutex_t lock;
	unsigned count;			/* of all lines ever: an iterator is such a count */
	char lines[LOG_LINES][LOG_LINE_BYTES];
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Held while callbacks run, so that one that was unregistered runs no more. */
static pthread_mutex_t callbacks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUlogsCallbackEntry_st *callbacks;
static __thread bool in_callback;

static void keep(const char *line)
{
	pthread_mutex_lock(&kept.lock);
	strcpy(kept.lines[kept.count++ % LOG_LINES], line);
	pthread_mutex_unlock(&kept.lock);
}

static void callbacks_left(void *unused)
{
	(void)unused;
	in_callback = false;
	pthread_mutex_unlock(&callbacks_lock);
}

/* A callback may end the thread (pthread_exit): it holds nothing else then. */
static void *tell(void *line)
{
	pthread_mutex_lock(&callbacks_lock);
	in_callback = true;
	pthread_cleanup_push(callbacks_left, NULL);
	for (struct CUlogsCallbackEntry_st *entry = callbacks; entry; entry = entry->next)
		entry->function(entry->opaque, CU_LOG_LEVEL_ERROR, line, strlen(line));
	pthread_cleanup_pop(1);
	return NULL;
}

/* ---- when callbacks are told ---- */

/* Of the thread's call, in their order. */
static __thread struct line {
	struct line *next;
	char text[];
} *first, **last;

/* The call has let go of all locks. */
static void tell_lines(void)
{
	while (first) {
		char text[LOG_LINE_BYTES];
		struct line *line = first;

		first = line->next;
		strcpy(text, line->text);
		free(line);
		tell(text);
	}
}

/* In the thread whose call it is about, before it returns: programs put the line beside that call's error. */
static bool tell_behind_call(const char *text)
{
	size_t bytes = strlen(text) + 1;
	struct line *line;

	if (!driver_call_then(tell_lines))
		return false;
	line = malloc(sizeof *line + bytes);
	if (!line)
		return true;
	line->next = NULL;
	memcpy(line->text, text, bytes);
	if (!first)
		last = &first;
	*last = line;
	last = &line->next;
	return true;
}

/* What a thread of the driver's has said, by another one, for it may hold locks and is not to end. */
static void tell_aside(char *line)
{
	pthread_t teller;

	if (!__atomic_load_n(&callbacks, __ATOMIC_ACQUIRE))
		return;
	if (!pthread_create(&teller, NULL, tell, line))
		pthread_join(teller, NULL);
}

void driver_say(const char *format, ...)
{
	char line[LOG_LINE_BYTES], *text;
	va_list values;
	int length;

	va_start(values, format);
	length = vasprintf(&text, format, values);
	va_end(values);
	if (length < 0) {
		fprintf(stderr, "softgpu: out of memory for a line: %s\n", format);
		return;
	}
	fprintf(stderr, "softgpu: %s\n", text);
	snprintf(line, sizeof line - 1, "softgpu: %s", text);
	strcat(line, "\n");
	free(text);
	keep(line);
	if (!in_callback && !tell_behind_call(line))
		tell_aside(line);
}

CUresult driver_log_register(CUlogsCallback function, void *opaque, CUlogsCallbackHandle *handle)
{
	struct CUlogsCallbackEntry_st *entry;

	if (in_callback)
		return CUDA_ERROR_NOT_PERMITTED;
	entry = malloc(sizeof *entry);
	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	entry->function = function;
	entry->opaque = opaque;
	pthread_mutex_lock(&callbacks_lock);
	entry->next = callbacks;
	callbacks = entry;
	pthread_mutex_unlock(&callbacks_lock);
	if (handle)
		*handle = entry;
	return CUDA_SUCCESS;
}

CUresult driver_log_unregister(CUlogsCallbackHandle handle)
{
	struct CUlogsCallbackEntry_st **link = &callbacks, *found;

	if (in_callback)
		return CUDA_ERROR_NOT_PERMITTED;
	pthread_mutex_lock(&callbacks_lock);
	while (*link && *link != handle)
		link = &(*link)->next;
	found = *link;
	if (found)
		*link = found->next;
	pthread_mutex_unlock(&callbacks_lock);
	free(found);
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- what was said ---- */

void driver_log_lock(void)
{
	pthread_mutex_lock(&kept.lock);
}

void driver_log_unlock(void)
{
	pthread_mutex_unlock(&kept.lock);
}

unsigned driver_log_count(void)
{
	return kept.count;
}

unsigned driver_log_first(const CUlogIterator *iterator)
{
	unsigned oldest = kept.count > LOG_LINES ? kept.count - LOG_LINES : 0;

	return iterator && *iterator - oldest <= kept.count - oldest ? *iterator : oldest;
}

const char *driver_log_line(unsigned number)
{
	return kept.lines[number % LOG_LINES];
}
