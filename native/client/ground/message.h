/* message.h - what the shim says to whoever reads stderr (message.c). */
#ifndef FARBUS_CLIENT_MESSAGE_H
#define FARBUS_CLIENT_MESSAGE_H

#include <stddef.h>

/* One line on stderr: "farbus: ...". */
void client_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Its two halves, for who holds a lock: the line on stderr, and in the log, whose callbacks are the program's. */
struct client_line {
	char text[512];
	size_t length;
};
void client_line_write(struct client_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
void client_line_log(const struct client_line *line);

#endif
