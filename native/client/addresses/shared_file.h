/* shared_file.h - files in memory that the server can have, too (shared_file.c). */
#ifndef FARBUS_CLIENT_SHARED_FILE_H
#define FARBUS_CLIENT_SHARED_FILE_H

#include <stdint.h>

/* The file that the program has at [low, high), which are whole pages, a description of it that is the caller's to close,
 * and where in it that is; -1: it is none that others can have too.  Its pages are there. */
int client_shared_file(uint64_t low, uint64_t high, uint64_t *offset);

#endif
