/* Who sleeps in poll(2) is woken, and nobody else; a program may close all descriptors meanwhile. */
#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "../transport/ground/sleeper.h"

#undef NDEBUG

/* What poll(2) says of it at once. */
static short look(const struct sleeper *sleeper)
{
	struct pollfd on = { .fd = sleeper->wake, .events = POLLIN };

	assert(poll(&on, 1, 0) >= 0);
	return on.revents;
}

static void test_who_sleeps_is_woken_once(void)
{
	struct sleeper sleeper = { .wake = -1 };

	assert(sleeper_make(&sleeper, 0));
	atomic_store(&sleeper.asleep, true);
	sleeper_wake(&sleeper);
	sleeper_wake(&sleeper);
	assert(look(&sleeper) == POLLIN);
	sleeper_awake(&sleeper, POLLIN);
	assert(look(&sleeper) == 0);
	assert(!atomic_load(&sleeper.asleep));
	sleeper_drop(&sleeper);
}

static void test_who_is_awake_is_left_alone(void)
{
	struct sleeper sleeper = { .wake = -1 };

	assert(sleeper_make(&sleeper, 0));
	sleeper_wake(&sleeper);
	assert(look(&sleeper) == 0);
	sleeper_drop(&sleeper);
}

static void test_its_number_is_beside_the_other(void)
{
	struct sleeper sleeper = { .wake = -1 };

	assert(sleeper_make(&sleeper, 100));
	assert(sleeper.wake >= 100);
	assert(fcntl(sleeper.wake, F_GETFD) == FD_CLOEXEC);
	sleeper_drop(&sleeper);
	assert(sleeper.wake == -1);
}

static void test_one_whose_descriptor_was_closed_sleeps_without(void)
{
	struct sleeper sleeper = { .wake = -1 };

	assert(sleeper_make(&sleeper, 100));
	close(sleeper.wake);
	assert(look(&sleeper) == POLLNVAL);
	sleeper_awake(&sleeper, POLLNVAL);
	assert(sleeper.wake == -1);
	atomic_store(&sleeper.asleep, true);
	sleeper_wake(&sleeper);
	sleeper_drop(&sleeper);
}

static void test_a_strangers_descriptor_is_not_closed(void)
{
	struct sleeper sleeper = { .wake = -1 };
	int ends[2], number;

	assert(sleeper_make(&sleeper, 100));
	assert(pipe(ends) == 0);
	number = sleeper.wake;
	assert(dup2(ends[0], number) == number);
	sleeper_drop(&sleeper);
	assert(fcntl(number, F_GETFD) >= 0);
	close(number);
	close(ends[0]);
	close(ends[1]);
}

int main(void)
{
	test_who_sleeps_is_woken_once();
	test_who_is_awake_is_left_alone();
	test_its_number_is_beside_the_other();
	test_one_whose_descriptor_was_closed_sleeps_without();
	test_a_strangers_descriptor_is_not_closed();
	puts("ok");
	return 0;
}
