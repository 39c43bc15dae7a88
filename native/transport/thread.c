/* See thread.h. */
#include "thread.h"

#include <signal.h>

int transport_thread_start(pthread_t *thread, void *(*run)(void *opaque), void *opaque)
{
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t detached;
	int rc;

	pthread_attr_init(&attributes);
	if (!thread)
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	/* It begins with what is blocked here. */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(thread ? thread : &detached, &attributes, run, opaque);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return -rc;
}
