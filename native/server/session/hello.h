/* hello.h - the hello (hello.c). */
#ifndef FARBUS_SERVER_HELLO_H
#define FARBUS_SERVER_HELLO_H

#include "../server_ops.h"

/* Hear the client's hello, answer it, and go on over the transport that both agree on.  0, or -errno and why. */
int server_hello(struct server *server, const struct server_options *options, char *why, int bytes);
/* Say why in one line, for the log of whoever started this process; gives `rc` back. */
int server_fail(char *why, int bytes, int rc, const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
