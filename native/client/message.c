#include "client.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The management library has no log. */
void client_log(const char *line, size_t length) __attribute__((weak));

void client_message(const char *format, ...)
{
	char line[512] = "farbus: ";
	size_t start = strlen(line);
	va_list arguments;
	int length, cancel;

	va_start(arguments, format);
	length = vsnprintf(line + start, sizeof(line) - start - 1, format, arguments);
	va_end(arguments);
	if (length < 0)
		return;
	if ((size_t)length > sizeof(line) - start - 2)
		length = (int)(sizeof(line) - start - 2);
	line[start + (size_t)length] = '\n';
	/* Who says something may hold locks, or read for all other threads: it is not cancelled here. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	if (client_log)
		client_log(line, start + (size_t)length + 1);
	/* One write: lines of several threads do not mix.  Nothing can be done
	 * about a stderr that is closed. */
	(void)!write(STDERR_FILENO, line, start + (size_t)length + 1);
	pthread_setcancelstate(cancel, &cancel);
}
