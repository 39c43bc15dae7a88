#define _GNU_SOURCE
#include "../driver/log.h"

#include "../driver/call.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LOG_DUMP_BYTES 25600u	/* as much in one dump as NVIDIA's driver keeps */

DRIVER_EXPORT CUresult cuLogsRegisterCallback(CUlogsCallback function, void *opaque,
					      CUlogsCallbackHandle *handle)
{
	DRIVER_CALL;
	return function ? driver_log_register(function, opaque, handle) : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle)
{
	DRIVER_CALL;
	return driver_log_unregister(handle);
}

DRIVER_EXPORT CUresult cuLogsCurrent(CUlogIterator *iterator, unsigned int flags)
{
	DRIVER_CALL;
	if (!iterator || flags)
		return CUDA_ERROR_INVALID_VALUE;
	driver_log_lock();
	*iterator = driver_log_count();
	driver_log_unlock();
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuLogsDumpToFile(CUlogIterator *iterator, const char *path, unsigned int flags)
{
	DRIVER_CALL;
	bool written = true;
	FILE *file;

	if (!path || flags)
		return CUDA_ERROR_INVALID_VALUE;
	file = fopen(path, "we");
	if (!file)
		return CUDA_ERROR_INVALID_VALUE;
	driver_log_lock();
	for (unsigned i = driver_log_first(iterator); i != driver_log_count(); i++)
		written = fputs(driver_log_line(i), file) >= 0 && written;
	if (iterator)
		*iterator = driver_log_count();
	driver_log_unlock();
	written = !fclose(file) && written;
	return written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* Where there is not room for all lines, the newest. */
DRIVER_EXPORT CUresult cuLogsDumpToMemory(CUlogIterator *iterator, char *buffer, size_t *size,
					  unsigned int flags)
{
	DRIVER_CALL;
	size_t length = 0, room;
	unsigned first, begin;
	bool none_fits;

	if (!buffer || !size || !*size || *size > LOG_DUMP_BYTES || flags)
		return CUDA_ERROR_INVALID_VALUE;
	room = *size - 1;
	driver_log_lock();
	first = driver_log_first(iterator);
	for (begin = driver_log_count(); begin != first; begin--) {
		size_t line = strlen(driver_log_line(begin - 1));

		if (line > room - length)
			break;
		length += line;
	}
	none_fits = begin == driver_log_count() && begin != first;
	*buffer = '\0';
	for (char *end = buffer; begin != driver_log_count(); begin++)
		end = stpcpy(end, driver_log_line(begin));
	if (iterator && !none_fits)
		*iterator = driver_log_count();
	driver_log_unlock();
	*size = length;
	return none_fits ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
