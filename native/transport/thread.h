/* thread.h - threads of this library's own in somebody's program. */
#ifndef FARBUS_TRANSPORT_THREAD_H
#define FARBUS_TRANSPORT_THREAD_H

#include <pthread.h>

/* Start a thread that gets no signals: handlers are the program's, for its own threads.  *thread is to be joined; with
 * NULL nobody joins it.  0 or -errno. */
int transport_thread_start(pthread_t *thread, void *(*run)(void *opaque), void *opaque);

#endif
