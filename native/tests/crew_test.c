/* A crew: what is given is done once, beside the caller, and waited for. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "../transport/ground/crew.h"

#undef NDEBUG

#define ROUNDS 2000u

struct part {
	unsigned in, out;
	struct part *other;
	_Atomic bool begun;
	int rc;
};

static int add(void *opaque)
{
	struct part *part = opaque;

	part->out = part->in + 1;
	return part->rc;
}

/* Not before the other one of the two has begun. */
static int meet(void *opaque)
{
	struct part *part = opaque;

	atomic_store(&part->begun, true);
	while (!atomic_load(&part->other->begun))
		sched_yield();
	return 0;
}

static void test_all_that_is_given_is_done_once(void)
{
	struct crew *crew = crew_make();
	struct part parts[CREW_THREADS] = { 0 };
	unsigned given = 0;

	assert(crew);
	for (unsigned round = 0; round < ROUNDS; round++) {
		/* Also after some have gone to sleep. */
		if (round % 500 == 0)
			usleep(1000);
		for (unsigned i = 0; i < CREW_THREADS; i++) {
			parts[i].in = parts[i].out;
			/* It rests where this test has not all processors. */
			if (crew_give(crew, add, &parts[i]))
				given++;
			else
				assert(round && add(&parts[i]) == 0);
		}
		assert(round || !crew_give(crew, add, &parts[0]));
		assert(crew_join(crew) == 0);
		for (unsigned i = 0; i < CREW_THREADS; i++)
			assert(parts[i].out == round + 1);
	}
	assert(given > CREW_THREADS);
	crew_drop(crew);
}

static void test_it_works_beside_the_caller(void)
{
	struct crew *crew = crew_make();
	struct part ours = { 0 }, theirs = { .other = &ours };

	ours.other = &theirs;
	assert(crew_give(crew, meet, &theirs));
	assert(meet(&ours) == 0 && crew_join(crew) == 0);
	crew_drop(crew);
}

static void test_an_error_is_told_once(void)
{
	struct crew *crew = crew_make();
	struct part parts[2] = { { .rc = 0 }, { .rc = -EPIPE } };

	assert(crew_give(crew, add, &parts[1]) && crew_give(crew, add, &parts[0]));
	assert(crew_join(crew) == -EPIPE);
	assert(crew_join(crew) == 0);
	crew_drop(crew);
}

static void test_no_crew_has_no_hands(void)
{
	struct part part = { 0 };

	assert(!crew_give(NULL, add, &part));
	assert(crew_join(NULL) == 0);
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

	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	/* What the crew has not begun, the caller does. */
	return pthread_equal(pthread_self(), *(pthread_t *)opaque) || sigismember(&blocked, SIGUSR1) ? 0 : -EINTR;
}

static void test_its_threads_get_no_signals(void)
{
	pthread_t self = pthread_self();
	struct crew *crew;

	signal(SIGUSR1, note);
	crew = crew_make();
	for (unsigned i = 0; i < CREW_THREADS; i++)
		assert(crew_give(crew, masked, &self));
	assert(crew_join(crew) == 0);
	raise(SIGUSR1);
	assert(atomic_load(&interrupted));
	crew_drop(crew);
}

int main(void)
{
	crew_set_processors(0);
	test_all_that_is_given_is_done_once();
	test_it_works_beside_the_caller();
	test_an_error_is_told_once();
	test_no_crew_has_no_hands();
	test_its_threads_get_no_signals();
	puts("ok");
	return 0;
}
