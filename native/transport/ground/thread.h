/* thread.h - threads of this library's own in somebody's program, and how long they wait. */
#ifndef FARBUS_TRANSPORT_THREAD_H
#define FARBUS_TRANSPORT_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* Start a thread that gets no signals: handlers are the program's, for its own threads.  *thread is to be joined; with
 * NULL nobody joins it.  0 or -errno. */
int transport_thread_start(pthread_t *thread, void *(*run)(void *opaque), void *opaque);

/* A condition that is waited for until some time: of the monotonic clock, since others may be set meanwhile. */
void transport_cond_init(pthread_cond_t *condition);
/* Wait with the lock, until then at most (transport_now_ns).  0, perhaps for nothing, or -ETIMEDOUT. */
int transport_cond_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until_ns);

#endif
