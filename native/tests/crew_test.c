/* A crew: what is given is done once, beside the caller, and waited for. */
#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "../transport/crew.h"

#undef NDEBUG

#define ROUNDS 2000u
#define THREADS 3u

struct part {
	unsigned in, out;
	int ends[2];
	_Atomic bool begun;
	int rc;
};

static int add(void *opaque)
{
	struct part *part = opaque;

	part->out = part->in + 1;
	return part->rc;
}

/* Not before somebody says so. */
static int hear(void *opaque)
{
	struct part *part = opaque;
	char byte;

	atomic_store(&part->begun, true);
	return read(part->ends[0], &byte, 1) == 1 ? 0 : -EIO;
}

static void test_all_that_is_given_is_done_once(void)
{
	struct crew *crew = crew_make(THREADS);
	struct part parts[THREADS] = { 0 };
	unsigned given = 0;

	assert(crew);
	for (unsigned round = 0; round < ROUNDS; round++) {
		/* Also after some have gone to sleep. */
		if (round % 500 == 0)
			usleep(1000);
		for (unsigned i = 0; i < THREADS; i++) {
			parts[i].in = parts[i].out;
			/* It rests where this test has not all processors. */
			if (crew_give(crew, add, &parts[i]))
				given++;
			else
				assert(round && add(&parts[i]) == 0);
		}
		assert(round || !crew_give(crew, add, &parts[0]));
		assert(crew_join(crew, -1) == 0);
		for (unsigned i = 0; i < THREADS; i++)
			assert(parts[i].out == round + 1);
	}
	assert(given > THREADS);
	crew_drop(crew);
}

static void test_who_has_something_to_do_is_given_nothing_else(void)
{
	struct crew *crew = crew_make(1);
	struct part waits = { 0 }, other = { 0 };

	assert(crew && pipe(waits.ends) == 0);
	assert(crew_give(crew, hear, &waits));
	assert(!crew_give(crew, add, &other));
	while (!atomic_load(&waits.begun))
		sched_yield();
	assert(crew_join(crew, 0) == -ETIMEDOUT);
	assert(crew_join(crew, 1) == -ETIMEDOUT);
	assert(write(waits.ends[1], "x", 1) == 1);
	assert(crew_join(crew, -1) == 0);
	assert(other.out == 0);
	crew_drop(crew);
}

static void test_an_error_is_told_once(void)
{
	struct crew *crew = crew_make(THREADS);
	struct part parts[2] = { { .rc = 0 }, { .rc = -EPIPE } };

	assert(crew_give(crew, add, &parts[1]) && crew_give(crew, add, &parts[0]));
	assert(crew_join(crew, -1) == -EPIPE);
	assert(crew_join(crew, -1) == 0);
	crew_drop(crew);
}

static void test_no_crew_has_no_hands(void)
{
	struct part part = { 0 };

	assert(!crew_give(NULL, add, &part));
	assert(crew_join(NULL, -1) == 0);
	crew_drop(NULL);
}

static _Atomic bool interrupted;

static void note(int signal)
{
	(void)signal;
	atomic_store(&interrupted, true);
}

static int masked(void *opaque)
{
	sigset_t blocked;

	(void)opaque;
	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	return sigismember(&blocked, SIGUSR1) ? 0 : -EINTR;
}

static void test_its_threads_get_no_signals(void)
{
	struct crew *crew;

	signal(SIGUSR1, note);
	crew = crew_make(THREADS);
	for (unsigned i = 0; i < THREADS; i++)
		assert(crew_give(crew, masked, NULL));
	assert(crew_join(crew, -1) == 0);
	raise(SIGUSR1);
	assert(atomic_load(&interrupted));
	crew_drop(crew);
}

int main(void)
{
	test_all_that_is_given_is_done_once();
	test_who_has_something_to_do_is_given_nothing_else();
	test_an_error_is_told_once();
	test_no_crew_has_no_hands();
	test_its_threads_get_no_signals();
	puts("ok");
	return 0;
}
