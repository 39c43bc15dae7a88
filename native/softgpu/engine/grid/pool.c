/* pool.c - blocks of a grid over threads.
 *
 * The thread that launches starts with the blocks at once.  Only a grid that
 * is still running after helpers_after() wakes the workers: waking one
 * costs more than a small grid.  Workers and their memory are kept.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../clock.h"
#include "../running.h"

#define WORKERS_MAX 255
#define IDLE_SLOTS_MAX 64

/* Counts of the time stamp counter: some 15 microseconds, what waking a thread costs. */
static uint64_t helpers_after(void)
{
#if defined(__x86_64__)
	return 40000;
#else
	uint64_t frequency_hz;

	__asm__("mrs %0, cntfrq_el0" : "=r"(frequency_hz));
	return frequency_hz * 15 / 1000000;
#endif
}

struct engine_options pool_options;

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t work, left;
	struct launch *queue;		/* launches that may have blocks left */
	struct slot *idle_slots;
	unsigned idle_slot_count;
	unsigned workers;		/* started threads */
	unsigned workers_wanted;	/* 0 until the first launch that wants one */
	pid_t pid;
} pool = {
	.mutex = PTHREAD_MUTEX_INITIALIZER,
	.work = PTHREAD_COND_INITIALIZER,
	.left = PTHREAD_COND_INITIALIZER,
};

void pool_fail(struct launch *launch, enum engine_status status,
	       const struct engine_diagnostic *why)
{
	pthread_mutex_lock(&pool.mutex);
	if (atomic_load(&launch->status) == ENGINE_OK) {
		launch->why = *why;
		atomic_store(&launch->status, status);
	}
	pthread_mutex_unlock(&pool.mutex);
}

/* ---- slots ---- */

static struct slot *slot_acquire(void)
{
	struct slot *slot;

	pthread_mutex_lock(&pool.mutex);
	slot = pool.idle_slots;
	if (slot) {
		pool.idle_slots = slot->next;
		pool.idle_slot_count--;
	}
	pthread_mutex_unlock(&pool.mutex);
	return slot ? slot : calloc(1, sizeof(*slot));
}

static void slot_give_back(struct slot *slot)
{
	pthread_mutex_lock(&pool.mutex);
	if (pool.idle_slot_count < IDLE_SLOTS_MAX) {
		slot->next = pool.idle_slots;
		pool.idle_slots = slot;
		pool.idle_slot_count++;
		slot = NULL;
	}
	pthread_mutex_unlock(&pool.mutex);
	if (slot) {
		slot_release(slot);
		free(slot);
	}
}

/* ---- workers ---- */

/* Under pool.mutex, or before helpers are called. */
static bool has_blocks(const struct launch *launch)
{
	if (launch->helpers >= launch->helpers_most)
		return false;
	if (launch->request->cooperative)
		return gang_wants_help(launch);
	return atomic_load_explicit(&launch->next_gang, memory_order_relaxed) <
		       launch->gang_total &&
	       atomic_load_explicit(&launch->status, memory_order_relaxed) == ENGINE_OK;
}

static struct launch *launch_to_help(void)
{
	for (struct launch *launch = pool.queue; launch; launch = launch->next)
		if (has_blocks(launch))
			return launch;
	return NULL;
}

static void help(struct slot *slot, struct launch *launch)
{
	struct engine_diagnostic why;

	slot->helpers_due = 0;
	/* The blocks of a cooperative launch are in the slot of its first thread.
	 * Without memory for a helper the others do its blocks. */
	if (launch->request->cooperative || slot_prepare(slot, launch, &why) == ENGINE_OK) {
		slot_run(slot, launch, true);
		slot_settle(slot, launch);
	} else {
		slot_release(slot);
	}
}

static void *worker_main(void *unused)
{
	struct slot *slot = calloc(1, sizeof(*slot));

	(void)unused;
	pthread_setname_np(pthread_self(), "softgpu");
	pthread_mutex_lock(&pool.mutex);
	while (slot) {
		struct launch *launch = launch_to_help();

		if (!launch) {
			pthread_cond_wait(&pool.work, &pool.mutex);
			continue;
		}
		launch->helpers++;
		pthread_mutex_unlock(&pool.mutex);
		help(slot, launch);
		pthread_mutex_lock(&pool.mutex);
		if (!--launch->helpers)
			pthread_cond_broadcast(&pool.left);
	}
	pool.workers--;
	pthread_mutex_unlock(&pool.mutex);
	return NULL;
}

static unsigned workers_by_options(void)
{
	long online = pool_options.workers ? (long)pool_options.workers
					   : sysconf(_SC_NPROCESSORS_ONLN);

	if (pool_options.deterministic || pool_options.strict || online < 1)
		online = 1;
	/* The launching thread is one of them. */
	return online > WORKERS_MAX ? WORKERS_MAX : (unsigned)online - 1;
}

unsigned pool_threads(void)
{
	return workers_by_options() + 1;
}

/* Under pool.mutex.  A forked child has none of its parent's threads. */
static void start_workers(void)
{
	sigset_t all, old;

	if (pool.pid != getpid()) {
		pool.pid = getpid();
		pool.workers = 0;
		pool.workers_wanted = workers_by_options();
	}
	if (pool.workers >= pool.workers_wanted)
		return;
	/* The program's signals are its own threads' business. */
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (pool.workers < pool.workers_wanted) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, worker_main, NULL)) {
			pool.workers_wanted = pool.workers;	/* as many as there are */
			break;
		}
		pthread_detach(thread);
		pool.workers++;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void pool_call_helpers(struct launch *launch)
{
	if (!has_blocks(launch))
		return;
	pthread_mutex_lock(&pool.mutex);
	start_workers();
	if (pool.workers) {
		launch->next = pool.queue;
		pool.queue = launch;
		launch->is_queued = true;
		pthread_cond_broadcast(&pool.work);
	}
	pthread_mutex_unlock(&pool.mutex);
}

static void take_from_queue(struct launch *launch)
{
	struct launch **link = &pool.queue;

	pthread_mutex_lock(&pool.mutex);
	while (*link != launch)
		link = &(*link)->next;
	*link = launch->next;
	while (launch->helpers)
		pthread_cond_wait(&pool.left, &pool.mutex);
	pthread_mutex_unlock(&pool.mutex);
}

void pool_run(struct launch *launch)
{
	struct engine_diagnostic why = { "out of memory" };
	struct slot *slot = slot_acquire();
	enum engine_status status;

	if (!slot) {
		pool_fail(launch, ENGINE_NO_MEMORY, &why);
		return;
	}
	fault_handlers_install();
	status = slot_prepare(slot, launch, &why);
	if (status != ENGINE_OK) {
		pool_fail(launch, status, &why);
		slot_release(slot);
	} else {
		bool divisible = launch->gang_total > 1 ||
				 launch->gang_blocks > launch->cluster_blocks;

		slot->helpers_due = divisible && !pool_options.deterministic &&
						    !pool_options.strict
					    ? time_stamp_counter() + helpers_after()
					    : 0;
		slot_run(slot, launch, false);
	}
	if (launch->is_queued)
		take_from_queue(launch);
	slot_settle(slot, launch);
	slot_give_back(slot);
}
