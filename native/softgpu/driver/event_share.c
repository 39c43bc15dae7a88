#define _GNU_SOURCE
#include "event_share.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EVENT_NAME "farbus-softgpu-event"
#define EVENT_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define LOOK_NS 50000000		/* how often who waits looks whether the recorder lives, 50 ms */

#define RECORDS_KEPT 256		/* a record counts as reached when so many are later */

/* All of it atomic: other processes write it. */
struct page {
	uint64_t reserved;		/* numbers given to records */
	uint64_t last;			/* the latest record that is there */
	uint32_t wakes;			/* futex: grows when more is reached */
	struct {
		uint64_t state;		/* the record's number times two, and 1 when it is reached */
		uint64_t recorder;	/* see identity_of */
	} records[RECORDS_KEPT];	/* by number, later ones in the place of earlier ones */
};

struct driver_shared_event {
	unsigned references;		/* atomic */
	int fd;
	struct page *page;
};

/* ---- life ---- */

static struct driver_shared_event *shared_map(int fd)
{
	struct driver_shared_event *shared = calloc(1, sizeof *shared);
	void *page = mmap(NULL, sizeof *shared->page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (!shared || page == MAP_FAILED) {
		if (page != MAP_FAILED)
			munmap(page, sizeof *shared->page);
		free(shared);
		return NULL;
	}
	shared->references = 1;
	shared->fd = fd;
	shared->page = page;
	return shared;
}

struct driver_shared_event *driver_shared_event_make(void)
{
	struct driver_shared_event *shared = NULL;
	int fd = memfd_create(EVENT_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return NULL;
	if (!ftruncate(fd, sizeof *shared->page) && !fcntl(fd, F_ADD_SEALS, EVENT_SEALS))
		shared = shared_map(fd);
	if (!shared)
		close(fd);
	return shared;
}

int driver_shared_event_file(const struct driver_shared_event *shared)
{
	return shared->fd;
}

/* Is it a page that an event of ours is? */
static bool is_event(int fd)
{
	static const char expected[] = "/memfd:" EVENT_NAME " (deleted)";
	char path[40], name[sizeof expected + 1];
	struct stat status;
	ssize_t length;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	length = readlink(path, name, sizeof name);
	return length == (ssize_t)sizeof expected - 1 && !memcmp(name, expected, (size_t)length) &&
	       (fcntl(fd, F_GET_SEALS) & EVENT_SEALS) == EVENT_SEALS && !fstat(fd, &status) &&
	       status.st_size == (off_t)sizeof(struct page);
}

struct driver_shared_event *driver_shared_event_open(int fd)
{
	struct driver_shared_event *shared = is_event(fd) ? shared_map(fd) : NULL;

	if (!shared)
		close(fd);
	return shared;
}

void driver_shared_event_hold(struct driver_shared_event *shared)
{
	__atomic_fetch_add(&shared->references, 1, __ATOMIC_RELAXED);
}

void driver_shared_event_drop(struct driver_shared_event *shared)
{
	if (!shared || __atomic_sub_fetch(&shared->references, 1, __ATOMIC_ACQ_REL))
		return;
	munmap(shared->page, sizeof *shared->page);
	close(shared->fd);
	free(shared);
}

/* ---- recording ---- */

/* Process and when it began, so that another one with its number is not taken for it. */
static uint64_t identity_of(pid_t pid)
{
	return (uint64_t)pid << 32 | (uint32_t)board_process_start(pid);
}

uint64_t driver_shared_event_record(struct driver_shared_event *shared)
{
	struct page *page = shared->page;
	uint64_t number = __atomic_add_fetch(&page->reserved, 1, __ATOMIC_ACQ_REL);
	uint64_t last = __atomic_load_n(&page->last, __ATOMIC_ACQUIRE);
	size_t at = number % RECORDS_KEPT;

	__atomic_store_n(&page->records[at].recorder, identity_of(getpid()), __ATOMIC_RELEASE);
	__atomic_store_n(&page->records[at].state, 2 * number, __ATOMIC_RELEASE);
	/* Who waits takes the last one, so it is told when all of it is there. */
	while (last < number && !__atomic_compare_exchange_n(&page->last, &last, number, false,
							     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	return number;
}

void driver_shared_event_reach(struct driver_shared_event *shared, uint64_t number)
{
	struct page *page = shared->page;
	uint64_t state = 2 * number;

	__atomic_compare_exchange_n(&page->records[number % RECORDS_KEPT].state, &state, state + 1,
				    false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	__atomic_fetch_add(&page->wakes, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &page->wakes, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- waiting ---- */

uint64_t driver_shared_event_last(const struct driver_shared_event *shared)
{
	return __atomic_load_n(&shared->page->last, __ATOMIC_ACQUIRE);
}

/* Each record for itself: a later one may be in a stream that is idle. */
static bool has_reached(const struct driver_shared_event *shared, uint64_t number)
{
	return __atomic_load_n(&shared->page->records[number % RECORDS_KEPT].state,
			       __ATOMIC_ACQUIRE) != 2 * number;
}

static bool recorder_lives(const struct driver_shared_event *shared, uint64_t number)
{
	uint64_t recorder = __atomic_load_n(&shared->page->records[number % RECORDS_KEPT].recorder,
					    __ATOMIC_ACQUIRE);

	return identity_of((pid_t)(recorder >> 32)) == recorder;
}

/* A later record that takes the place meanwhile makes it reached, whose recorder it was. */
bool driver_shared_event_is_reached(struct driver_shared_event *shared, uint64_t number)
{
	if (has_reached(shared, number))
		return true;
	if (recorder_lives(shared, number))
		return has_reached(shared, number);
	driver_shared_event_reach(shared, number);
	return true;
}

/* Until it is reached, or `cancel` says that nobody wants to know any more. */
static void await(struct driver_shared_event *shared, uint64_t number, const int *cancel)
{
	const struct timespec look = { 0, LOOK_NS };

	for (;;) {
		uint32_t wakes = __atomic_load_n(&shared->page->wakes, __ATOMIC_ACQUIRE);

		if (has_reached(shared, number) || (cancel && __atomic_load_n(cancel, __ATOMIC_RELAXED)))
			return;
		if (syscall(SYS_futex, &shared->page->wakes, FUTEX_WAIT, wakes, &look, NULL, 0) &&
		    errno == ETIMEDOUT && driver_shared_event_is_reached(shared, number))
			return;
	}
}

void driver_shared_event_wait(struct driver_shared_event *shared, uint64_t number)
{
	await(shared, number, NULL);
}

struct wait_operation {
	struct driver_operation base;
	struct driver_shared_event *shared;
	struct CUctx_st *context;	/* of the stream, which holds it */
	uint64_t number;
};

static CUresult run_wait(struct driver_operation *operation, CUresult state)
{
	struct wait_operation *wait = (struct wait_operation *)operation;

	(void)state;
	await(wait->shared, wait->number, &wait->context->cancel);
	return CUDA_SUCCESS;
}

static void release_wait(struct driver_operation *operation)
{
	driver_shared_event_drop(((struct wait_operation *)operation)->shared);
	free(operation);
}

CUresult driver_shared_event_follow(struct CUstream_st *stream, struct driver_shared_event *shared,
				    uint64_t number)
{
	struct wait_operation *wait;

	if (driver_shared_event_is_reached(shared, number))
		return CUDA_SUCCESS;
	wait = calloc(1, sizeof *wait);
	if (!wait)
		return CUDA_ERROR_OUT_OF_MEMORY;
	wait->base.run = run_wait;
	wait->base.release = release_wait;
	wait->base.is_idle = true;
	driver_shared_event_hold(shared);
	wait->shared = shared;
	wait->context = stream->context;
	wait->number = number;
	return driver_stream_submit(stream, &wait->base, 0, NULL);
}
