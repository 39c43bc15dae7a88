/* Threads of the library's own: they get no signals, and the caller's mask stays as it was. */
#include <assert.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>

#include "../transport/ground/thread.h"

#undef NDEBUG

struct seen {
	sem_t done;
	sigset_t blocked;
	int state;
};

static void *look(void *opaque)
{
	struct seen *seen = opaque;
	pthread_attr_t attributes;

	pthread_sigmask(SIG_SETMASK, NULL, &seen->blocked);
	pthread_getattr_np(pthread_self(), &attributes);
	pthread_attr_getdetachstate(&attributes, &seen->state);
	pthread_attr_destroy(&attributes);
	sem_post(&seen->done);
	return opaque;
}

static void assert_gets_none(const struct seen *seen)
{
	assert(sigismember(&seen->blocked, SIGINT));
	assert(sigismember(&seen->blocked, SIGUSR1));
	assert(sigismember(&seen->blocked, SIGSEGV));
}

static void test_one_that_is_joined(void)
{
	struct seen seen = { .state = -1 };
	pthread_t thread;
	void *returned;

	sem_init(&seen.done, 0, 0);
	assert(transport_thread_start(&thread, look, &seen) == 0);
	assert(pthread_join(thread, &returned) == 0);
	assert(returned == &seen);
	assert(seen.state == PTHREAD_CREATE_JOINABLE);
	assert_gets_none(&seen);
}

static void test_one_that_nobody_joins(void)
{
	static struct seen seen = { .state = -1 };

	sem_init(&seen.done, 0, 0);
	assert(transport_thread_start(NULL, look, &seen) == 0);
	while (sem_wait(&seen.done))
		;
	assert(seen.state == PTHREAD_CREATE_DETACHED);
	assert_gets_none(&seen);
}

static void test_the_caller_has_its_mask_again(void)
{
	struct seen seen = { .state = -1 };
	sigset_t own, after;
	pthread_t thread;

	sem_init(&seen.done, 0, 0);
	sigemptyset(&own);
	sigaddset(&own, SIGUSR2);
	pthread_sigmask(SIG_SETMASK, &own, NULL);
	assert(transport_thread_start(&thread, look, &seen) == 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	assert(sigismember(&after, SIGUSR2) && !sigismember(&after, SIGUSR1) && !sigismember(&after, SIGINT));
	pthread_join(thread, NULL);
}

int main(void)
{
	test_one_that_is_joined();
	test_one_that_nobody_joins();
	test_the_caller_has_its_mask_again();
	puts("ok");
	return 0;
}
