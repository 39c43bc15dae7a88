/* What is noted is not the child's, whatever thread forks when; and nobody waits for good. */
#undef NDEBUG
#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../transport/ground/clofork.h"

static int file_make(void)
{
	int made = memfd_create("test", MFD_CLOEXEC);

	assert(made >= 0);
	return made;
}

static int file_noted(void)
{
	struct clofork_section section;
	int made;

	clofork_begin(&section);
	made = file_make();
	clofork_note(made);
	clofork_end(&section);
	return made;
}

static bool is_open(int descriptor)
{
	return fcntl(descriptor, F_GETFD) >= 0;
}

/* Has the child of a fork a copy? */
static bool child_has(int descriptor)
{
	pid_t child = fork();
	int status;

	assert(child >= 0);
	if (!child)
		_exit(is_open(descriptor));
	assert(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void test_the_child_has_no_copy_of_what_is_noted(void)
{
	int noted = file_noted(), other = file_make();

	assert(!child_has(noted) && child_has(other));
	assert(is_open(noted));
	clofork_close(noted);
	clofork_close(other);
	assert(!is_open(noted) && !is_open(other));
}

static void test_a_number_that_is_another_file_s_now_is_left_alone(void)
{
	int noted = file_noted(), other = file_make();

	/* As a program that closes all descriptors and goes on. */
	assert(dup2(other, noted) == noted);
	assert(child_has(noted));
	clofork_close(noted);
	assert(dup2(other, noted) == noted);
	assert(child_has(noted));
	close(noted);
	close(other);
}

static void test_a_copy_is_noted_as_the_first_one_is(void)
{
	int noted = file_noted(), other = file_make(), over = file_make();
	int high = clofork_raise(noted, noted + 100);

	assert(high >= noted + 100 && !is_open(noted) && !child_has(high));
	assert(clofork_raise(high, 0) == high);
	assert(clofork_raise(-1, 100) == -1);
	assert(clofork_copy(high, over) == 0 && !child_has(over));
	clofork_close(high);
	assert(!child_has(over));
	clofork_close(over);
	assert(clofork_copy(other, over) == 0 && child_has(over));
	high = clofork_raise(other, other + 100);
	assert(child_has(high));
	close(high);
	close(over);
}

static void test_of_more_than_there_is_room_for_the_rest_is_left(void)
{
	int numbers[CLOFORK_MOST], more;

	for (int i = 0; i < CLOFORK_MOST; i++)
		numbers[i] = file_noted();
	more = file_noted();
	assert(!child_has(numbers[0]) && !child_has(numbers[CLOFORK_MOST - 1]) && child_has(more));
	for (int i = 0; i < CLOFORK_MOST; i++)
		clofork_close(numbers[i]);
	clofork_close(more);
}

static _Atomic pid_t forker;
static _Atomic bool has_forked;

static void *fork_once(void *opaque)
{
	bool *had = opaque;

	atomic_store(&forker, (pid_t)syscall(SYS_gettid));
	*had = child_has(3);
	atomic_store(&has_forked, true);
	return NULL;
}

/* It sleeps; it waits for nothing but to fork. */
static bool sleeps(pid_t thread)
{
	char path[64], state = 0;
	FILE *stat;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
	stat = fopen(path, "re");
	assert(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
	fclose(stat);
	return state == 'S';
}

static void test_no_thread_forks_in_a_section(void)
{
	struct clofork_section section;
	pthread_t thread;
	bool had = true;

	assert(!is_open(3));
	clofork_begin(&section);
	assert(file_make() == 3);
	assert(pthread_create(&thread, NULL, fork_once, &had) == 0);
	while (!atomic_load(&forker) || !(sleeps(atomic_load(&forker)) || atomic_load(&has_forked)))
		sched_yield();
	assert(!atomic_load(&has_forked));
	clofork_note(3);
	clofork_end(&section);
	assert(pthread_join(thread, NULL) == 0);
	assert(atomic_load(&has_forked) && !had);
	clofork_close(3);
}

static volatile sig_atomic_t handled, raises;

static void fork_in_handler(int number)
{
	(void)number;
	assert(!child_has(1000));
	handled = 1;
}

static void test_a_handler_that_forks_comes_behind_a_section(void)
{
	struct clofork_section section;

	handled = 0;
	clofork_begin(&section);
	raise(SIGUSR1);
	assert(!handled);
	clofork_end(&section);
	assert(handled);
}

/* Another library's, which is asked while this one's lock is held. */
static void prepared_later(void)
{
	if (raises) {
		raises = 0;
		raise(SIGUSR1);
		assert(!handled);
	}
}

static void test_a_handler_that_forks_comes_behind_a_fork(void)
{
	handled = 0;
	raises = 1;
	assert(!child_has(1000));
	assert(handled);
}

int main(void)
{
	alarm(60);
	signal(SIGUSR1, fork_in_handler);
	/* The one that is registered last prepares first. */
	assert(pthread_atfork(prepared_later, NULL, NULL) == 0);
	assert(pthread_atfork(clofork_prepare, clofork_parent, clofork_child) == 0);
	for (int i = 3; i < 16; i++)
		close(i);
	test_no_thread_forks_in_a_section();
	test_the_child_has_no_copy_of_what_is_noted();
	test_a_number_that_is_another_file_s_now_is_left_alone();
	test_a_copy_is_noted_as_the_first_one_is();
	test_of_more_than_there_is_room_for_the_rest_is_left();
	test_a_handler_that_forks_comes_behind_a_section();
	test_a_handler_that_forks_comes_behind_a_fork();
	puts("ok");
	return 0;
}
