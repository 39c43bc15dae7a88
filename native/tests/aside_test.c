/* Frames that are read while another is served: in their order, lent to one thread at a time, and no more than are served. */
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../server/ground/aside.h"

#undef NDEBUG

static _Atomic unsigned host_waits;
static _Atomic int threads;

/* A machine whose clock is set: what it says of the time of day has nothing to do with how long anything takes. */
int clock_gettime(clockid_t clock, struct timespec *time)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, time);

	if (clock == CLOCK_REALTIME)
		time->tv_sec = 0;
	return rc;
}

static struct aside made(void)
{
	struct aside aside = { 0 };

	atomic_store(&host_waits, 1);
	atomic_store(&threads, 1);
	return aside;
}

static void test_what_is_kept_is_served_in_its_order(void)
{
	struct aside aside = made();
	struct aside_frame first = { 0 }, second = { 0 }, third = { 0 };

	aside_init(&aside, &host_waits, &threads);
	assert(aside_keep(&aside, &first) == ASIDE_LENT);
	assert(aside_keep(&aside, &second) == ASIDE_KEPT);
	assert(aside_next(&aside) == &first);
	assert(aside_keep(&aside, &third) == ASIDE_KEPT);
	assert(aside_next(&aside) == &second);
	assert(aside_next(&aside) == &third);
	assert(aside.lent);
	assert(!aside_next(&aside));
	assert(!aside.lent && !aside.bytes);
}

static void test_where_no_stream_waits_nothing_is_kept_but_behind_what_is(void)
{
	struct aside aside = made();
	struct aside_frame first = { 0 }, second = { 0 };

	aside_init(&aside, &host_waits, &threads);
	assert(aside_keep(&aside, &first) == ASIDE_LENT);
	atomic_store(&host_waits, 0);
	assert(aside_keep(&aside, &second) == ASIDE_KEPT);
	assert(aside_next(&aside) == &first && aside_next(&aside) == &second && !aside_next(&aside));
	assert(aside_keep(&aside, &first) == ASIDE_NOT);
}

static void *park(void *opaque)
{
	assert(aside_park(opaque));
	return NULL;
}

static void test_who_is_about_to_wait_passes_on_what_is_kept(void)
{
	struct aside aside = made();
	struct aside_frame frame = { 0 };
	pthread_t parked;

	aside_init(&aside, &host_waits, &threads);
	assert(aside_keep(&aside, &frame) == ASIDE_LENT);
	assert(aside_keep(&aside, &frame) == ASIDE_KEPT);
	assert(!aside_pass(&aside));
	atomic_fetch_add(&threads, 1);
	assert(pthread_create(&parked, NULL, park, &aside) == 0);
	while (!aside_pass(&aside))
		;
	assert(pthread_join(parked, NULL) == 0);
	assert(atomic_load(&threads) == 2);
}

static void test_where_nothing_is_kept_who_reads_serves_again(void)
{
	struct aside aside = made();
	struct aside_frame frame = { 0 };

	aside_init(&aside, &host_waits, &threads);
	assert(aside_keep(&aside, &frame) == ASIDE_LENT);
	assert(aside_next(&aside) == &frame);
	assert(aside_pass(&aside));
	assert(aside_keep(&aside, &frame) == ASIDE_LENT);
}

struct keeping {
	struct aside *aside;
	struct aside_frame frame;
	enum aside_kept kept;
	_Atomic pid_t thread;
	_Atomic bool over;
};

static void *keep(void *opaque)
{
	struct keeping *keeping = opaque;

	atomic_store(&keeping->thread, gettid());
	keeping->kept = aside_keep(keeping->aside, &keeping->frame);
	atomic_store(&keeping->over, true);
	return NULL;
}

/* Until it sleeps, or does not have to. */
static void await_asleep(struct keeping *keeping)
{
	char path[64], state = 0;

	while (state != 'S' && !atomic_load(&keeping->over)) {
		FILE *file;

		sched_yield();
		if (!atomic_load(&keeping->thread))
			continue;
		(void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(&keeping->thread));
		file = fopen(path, "r");
		if (!file)
			continue;
		if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
			state = 0;
		fclose(file);
	}
}

/* Whatever becomes of the time of day meanwhile. */
static void test_who_reads_waits_while_too_much_is_kept(void)
{
	struct aside aside = made();
	struct aside_frame much[2] = { { .header.length = ASIDE_BYTES_LIMIT }, { .header.length = 1 } };
	struct keeping keeping = { .aside = &aside };
	pthread_t reader;

	aside_init(&aside, &host_waits, &threads);
	assert(aside_keep(&aside, &much[0]) == ASIDE_LENT);
	assert(pthread_create(&reader, NULL, keep, &keeping) == 0);
	await_asleep(&keeping);
	assert(aside_next(&aside) == &much[0]);
	assert(pthread_join(reader, NULL) == 0);
	assert(keeping.kept == ASIDE_KEPT);
}

int main(void)
{
	test_what_is_kept_is_served_in_its_order();
	test_where_no_stream_waits_nothing_is_kept_but_behind_what_is();
	test_who_is_about_to_wait_passes_on_what_is_kept();
	test_where_nothing_is_kept_who_reads_serves_again();
	test_who_reads_waits_while_too_much_is_kept();
	puts("ok");
	return 0;
}
