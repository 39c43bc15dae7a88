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

/* In the thread whose call it is about: programs put the line beside that call's error. */
static void tell(char *line)
{
	if (in_callback)
		return;
	pthread_mutex_lock(&callbacks_lock);
	in_callback = true;
	for (struct CUlogsCallbackEntry_st *entry = callbacks; entry; entry = entry->next)
		entry->function(entry->opaque, CU_LOG_LEVEL_ERROR, line, strlen(line));
	in_callback = false;
	pthread_mutex_unlock(&callbacks_lock);
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
	tell(line);
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
