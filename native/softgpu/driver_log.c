#define _GNU_SOURCE
/* The log: each line that this driver says on stderr, for those who ask by cuLogs*. */
#include "driver_device.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As many, and as much in one dump, as NVIDIA's driver keeps. */
#define LOG_LINES 100u
#define LOG_DUMP_BYTES 25600u
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

DRIVER_EXPORT CUresult cuLogsRegisterCallback(CUlogsCallback function, void *opaque,
					      CUlogsCallbackHandle *handle)
{
	struct CUlogsCallbackEntry_st *entry;

	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
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

DRIVER_EXPORT CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle)
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

DRIVER_EXPORT CUresult cuLogsCurrent(CUlogIterator *iterator, unsigned int flags)
{
	if (!iterator || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&kept.lock);
	*iterator = kept.count;
	pthread_mutex_unlock(&kept.lock);
	return CUDA_SUCCESS;
}

/* With the lock.  The first line that is asked for and still there. */
static unsigned first_line(const CUlogIterator *iterator)
{
	unsigned oldest = kept.count > LOG_LINES ? kept.count - LOG_LINES : 0;

	return iterator && *iterator - oldest <= kept.count - oldest ? *iterator : oldest;
}

DRIVER_EXPORT CUresult cuLogsDumpToFile(CUlogIterator *iterator, const char *path, unsigned int flags)
{
	bool written = true;
	FILE *file;

	if (!path || flags)
		return CUDA_ERROR_INVALID_VALUE;
	file = fopen(path, "we");
	if (!file)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&kept.lock);
	for (unsigned i = first_line(iterator); i != kept.count; i++)
		written = fputs(kept.lines[i % LOG_LINES], file) >= 0 && written;
	if (iterator)
		*iterator = kept.count;
	pthread_mutex_unlock(&kept.lock);
	written = !fclose(file) && written;
	return written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* Where there is not room for all lines, the newest. */
DRIVER_EXPORT CUresult cuLogsDumpToMemory(CUlogIterator *iterator, char *buffer, size_t *size,
					  unsigned int flags)
{
	size_t length = 0, room;
	unsigned first, begin;
	bool none_fits;

	if (!buffer || !size || !*size || *size > LOG_DUMP_BYTES || flags)
		return CUDA_ERROR_INVALID_VALUE;
	room = *size - 1;
	pthread_mutex_lock(&kept.lock);
	first = first_line(iterator);
	for (begin = kept.count; begin != first; begin--) {
		size_t line = strlen(kept.lines[(begin - 1) % LOG_LINES]);

		if (line > room - length)
			break;
		length += line;
	}
	none_fits = begin == kept.count && begin != first;
	*buffer = '\0';
	for (char *end = buffer; begin != kept.count; begin++)
		end = stpcpy(end, kept.lines[begin % LOG_LINES]);
	if (iterator && !none_fits)
		*iterator = kept.count;
	pthread_mutex_unlock(&kept.lock);
	*size = length;
	return none_fits ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
