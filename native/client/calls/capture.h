/* capture.h - the calls about captures (capture.c). */
#ifndef FARBUS_CLIENT_CALLS_CAPTURE_H
#define FARBUS_CLIENT_CALLS_CAPTURE_H

#include "../client.h"

/* What this thread was told of a capture goes with it. */
void client_capture_thread_ends(void);

#endif
