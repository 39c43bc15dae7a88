/* See thread.h. */
#include "thread.h"

#include <signal.h>
#include <time.h>

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

void transport_cond_init(pthread_cond_t *condition)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(condition, &attributes);
	pthread_condattr_destroy(&attributes);
}

int transport_cond_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until_ns)
{
	const struct timespec until = {
		.tv_sec = (time_t)(until_ns / 1000000000u),
		.tv_nsec = (long)(until_ns % 1000000000u),
	};

	return -pthread_cond_timedwait(condition, lock, &until);
}
