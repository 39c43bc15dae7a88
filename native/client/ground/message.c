#include "log.h"
#include "message.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The management library has no log. */
void client_log(const char *line, size_t length) __attribute__((weak));

static void line_write(struct client_line *line, const char *format, va_list arguments)
{
	static const char begin[] = "farbus: ";
	const size_t start = sizeof(begin) - 1;
	int length, cancel;

	memcpy(line->text, begin, start);
	length = vsnprintf(line->text + start, sizeof(line->text) - start - 1, format, arguments);
	if (length < 0)
		length = 0;
	if ((size_t)length > sizeof(line->text) - start - 2)
		length = (int)(sizeof(line->text) - start - 2);
	line->length = start + (size_t)length;
	line->text[line->length++] = '\n';
	/* Who says something may hold locks, or read for all other threads: it is not cancelled here. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	/* One write: lines of several threads do not mix.  Nothing can be done
	 * about a stderr that is closed. */
	(void)!write(STDERR_FILENO, line->text, line->length);
	pthread_setcancelstate(cancel, &cancel);
}

void client_line_write(struct client_line *line, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	line_write(line, format, arguments);
	va_end(arguments);
}

void client_line_log(const struct client_line *line)
{
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	if (client_log)
		client_log(line->text, line->length);
	pthread_setcancelstate(cancel, &cancel);
}

void client_message(const char *format, ...)
{
	struct client_line line;
	va_list arguments;

	va_start(arguments, format);
	line_write(&line, format, arguments);
	va_end(arguments);
	client_line_log(&line);
}
