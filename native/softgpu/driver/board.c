#define _GNU_SOURCE
#include "board.h"

#include "../engine/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOARD_FOLDER "/dev/shm"
#define BOARD_PREFIX "farbus-softgpu-"
#define BOARD_UUID_LENGTH 36		/* characters, without "GPU-" */
#define BOARD_MAGIC 0x50474653u		/* "SFGP" */
#define BOARD_LAYOUT 1u
#define BOARD_OPEN_ATTEMPTS 64		/* a board may retire while it is opened */
#define BOARD_WINDOW_NS 250000000ull	/* grain of the utilisation */
#define BOARD_WINDOW_COUNT 8		/* ring; four full ones make the last second */
#define BOARD_WINDOWS_READ 4

struct board_window {
	uint64_t epoch;			/* start time / BOARD_WINDOW_NS */
	uint64_t busy_ns;
};

/* One process.  Free when pid is 0. */
struct board_user {
	int32_t pid;
	uint32_t contexts;
	uint64_t start_time;		/* board_process_start, in ticks */
	uint64_t used_bytes;
	uint64_t busy_ns;		/* finished busy spans */
	uint64_t busy_since_ns;		/* 0: idle */
	struct board_window windows[BOARD_WINDOW_COUNT];
};

struct board_region {
	uint32_t magic;
	uint32_t layout;
	pthread_mutex_t lock;		/* process-shared and robust: a holder may die */
	uint64_t reserved;
	struct board_model model;
	struct board_user users[BOARD_USER_MAX];
};

struct board {
	struct board_identity identity;
	struct board_region *region;
	struct board_user *self;	/* NULL for one that only looks */
	/* Stands in for self when the account was given up: what threads that
	 * outlive it still count must not reach the slot's next owner. */
	struct board_user departed;
	char path[96];
	/* Spans of several threads merge into one: first in begins, last out ends. */
	pthread_mutex_t busy_lock;
	unsigned busy_count;
};

/* ---- the shared region ---- */

/* Field 22 of /proc/<pid>/stat tells a process from a later one with the same
 * number; its first thread's is the same.  That one is read, as an emulator (QEMU's, of
 * a processor) makes up the process's own file for the process itself, which others would
 * then take for gone.  0 when there is no such process (or it is a zombie, whose memory
 * is gone already, unless threads of it live on). */
uint64_t board_process_start(pid_t pid)
{
	char path[64], text[1024], *field;
	unsigned long long threads = 0, start = 0;
	char state = 0;
	ssize_t got;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	got = read(fd, text, sizeof text - 1);
	close(fd);
	if (got <= 0)
		return 0;
	text[got] = '\0';
	/* The command's name is in parentheses and may hold any character. */
	field = strrchr(text, ')');
	if (!field || sscanf(field + 1,
			     " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
			     "%*s %*s %llu %*s %llu", &state, &threads, &start) != 3)
		return 0;
	return (state == 'Z' || state == 'X') && threads <= 1 ? 0 : start;
}

static void region_lock(struct board_region *region)
{
	/* What the lock guards are single stores per user, so a holder that died
	 * left nothing half-done that the sweep would not mend. */
	if (pthread_mutex_lock(&region->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&region->lock);
}

static void region_unlock(struct board_region *region)
{
	pthread_mutex_unlock(&region->lock);
}

/* Forget users that are gone; called with the lock.  Returns how many live. */
static unsigned region_sweep(struct board_region *region)
{
	unsigned live = 0;

	for (unsigned i = 0; i < BOARD_USER_MAX; i++) {
		struct board_user *user = &region->users[i];

		if (!user->pid)
			continue;
		if (board_process_start(user->pid) == user->start_time)
			live++;
		else
			memset(user, 0, sizeof *user);
	}
	return live;
}

static uint64_t region_used(const struct board_region *region)
{
	uint64_t used = 0;

	for (unsigned i = 0; i < BOARD_USER_MAX; i++)
		used += region->users[i].used_bytes;
	return used;
}

/* Was it removed?  The file's own count of names says so, because whoever removes it
 * may be killed before he could say anything else. */
static bool region_is_removed(int fd)
{
	struct stat status;

	return !fstat(fd, &status) && !status.st_nlink;
}

static int region_map(int fd, struct board_region **out)
{
	struct board_region *region;
	struct stat status;

	if (fstat(fd, &status))
		return -errno;
	if (status.st_size != sizeof *region)
		return -EPROTO;
	region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (region == MAP_FAILED)
		return -errno;
	if (region->magic != BOARD_MAGIC || region->layout != BOARD_LAYOUT) {
		munmap(region, sizeof *region);
		return -EPROTO;
	}
	*out = region;
	return 0;
}

/* Map and lock a region that is still in place.  -ENOENT when there is none, or not
 * any more. */
static int region_open(const char *path, struct board_region **out)
{
	struct board_region *region = NULL;
	int fd, error;

	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	error = region_map(fd, &region);
	if (error)
		goto out_close;
	region_lock(region);
	if (region_is_removed(fd)) {
		region_unlock(region);
		munmap(region, sizeof *region);
		error = -ENOENT;
		goto out_close;
	}
	*out = region;
out_close:
	close(fd);
	return error;
}

/* Build the region without a name and link it into place, so that nobody ever sees
 * half of it, and none is left by who is killed meanwhile.  -EEXIST when another process
 * was faster. */
static int region_create(const char *path, const struct board_model *model)
{
	struct board_region *region;
	pthread_mutexattr_t attributes;
	char nameless[32];
	int fd, error = 0;

	fd = open(BOARD_FOLDER, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	/* All of it now: a page that finds no room later is a SIGBUS. */
	do {
		error = -posix_fallocate(fd, 0, sizeof *region);
	} while (error == -EINTR);
	if (error)
		goto out_close;
	region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (region == MAP_FAILED) {
		error = -errno;
		goto out_close;
	}
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&region->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	region->model = *model;
	region->layout = BOARD_LAYOUT;
	region->magic = BOARD_MAGIC;
	munmap(region, sizeof *region);
	/* open(2) names this way to link a file of O_TMPFILE without privileges. */
	snprintf(nameless, sizeof nameless, "/proc/self/fd/%d", fd);
	/* Open to every user of the node, as a GPU's device file is. */
	if (fchmod(fd, 0666) ||
	    linkat(AT_FDCWD, nameless, AT_FDCWD, path, AT_SYMLINK_FOLLOW))
		error = -errno;
out_close:
	close(fd);
	return error;
}

static struct board_user *region_join(struct board_region *region)
{
	pid_t pid = getpid();
	struct board_user *slot = NULL;

	for (unsigned i = 0; i < BOARD_USER_MAX; i++) {
		/* A slot of this very process is what it left before an exec. */
		if (region->users[i].pid == pid) {
			slot = &region->users[i];
			break;
		}
		if (!region->users[i].pid && !slot)
			slot = &region->users[i];
	}
	if (!slot)
		return NULL;
	memset(slot, 0, sizeof *slot);
	slot->start_time = board_process_start(pid);
	slot->pid = pid;
	return slot;
}

static struct board *board_make(unsigned index)
{
	struct board *board = calloc(1, sizeof *board);
	char uuid[41];

	if (!board)
		return NULL;
	board_identity_of(index, &board->identity);
	board_uuid_format(board->identity.uuid, uuid);
	snprintf(board->path, sizeof board->path, BOARD_FOLDER "/" BOARD_PREFIX "%s", uuid + 4);
	pthread_mutex_init(&board->busy_lock, NULL);
	return board;
}

static void board_free(struct board *board)
{
	if (board->region)
		munmap(board->region, sizeof *board->region);
	pthread_mutex_destroy(&board->busy_lock);
	free(board);
}

int board_open(struct board **out, unsigned index, const struct board_model *wanted,
	       bool *adopted, struct board_diagnostic *why)
{
	struct board *board = board_make(index);
	int error = -EAGAIN;

	if (!board)
		return -ENOMEM;
	for (unsigned attempt = 0; attempt < BOARD_OPEN_ATTEMPTS; attempt++) {
		error = region_open(board->path, &board->region);
		if (error == -ENOENT) {
			error = region_create(board->path, wanted);
			if (error && error != -EEXIST)
				break;
			error = -EAGAIN;
			continue;
		}
		if (error)
			break;
		/* Nobody else there: the board takes this process's model. */
		if (!region_sweep(board->region))
			board->region->model = *wanted;
		board->self = region_join(board->region);
		error = board->self ? 0 : -EUSERS;
		*adopted = memcmp(&board->region->model, wanted, sizeof *wanted) != 0;
		region_unlock(board->region);
		break;
	}
	if (error) {
		snprintf(why->text, sizeof why->text, "%s: %s%s", board->path,
			 error == -EPROTO ? "not a software GPU of this version" :
			 error == -EUSERS ? "as many processes use it as can" : strerror(-error),
			 error == -EPROTO ? "; remove it when no program uses it" :
			 error == -EUSERS ? "; end some of them" :
			 error == -ENOSPC ? "; make room there" : "");
		board_free(board);
		return error;
	}
	*out = board;
	return 0;
}

/* With the lock of a region that is in place: without users left it goes; true when it is
 * gone. */
static bool region_remove_if_idle(struct board_region *region, const char *path)
{
	return !region_sweep(region) && !unlink(path);
}

int board_peek(struct board **out, unsigned index)
{
	struct board *board = board_make(index);
	int error;

	if (!board)
		return -ENOMEM;
	error = region_open(board->path, &board->region);
	if (error) {
		board_free(board);
		return error;
	}
	/* All of its users were killed: nobody is left to remove it but us. */
	error = region_remove_if_idle(board->region, board->path) ? -ENOENT : 0;
	region_unlock(board->region);
	if (error) {
		board_free(board);
		return error;
	}
	*out = board;
	return 0;
}

void board_retire(struct board *board)
{
	region_lock(board->region);
	memset(board->self, 0, sizeof *board->self);
	board->self = &board->departed;
	region_remove_if_idle(board->region, board->path);
	region_unlock(board->region);
}

void board_sweep_node(void)
{
	DIR *folder = opendir(BOARD_FOLDER);
	struct board_region *region;
	struct dirent *entry;
	char path[96];

	if (!folder)
		return;
	while ((entry = readdir(folder))) {
		if (strncmp(entry->d_name, BOARD_PREFIX, strlen(BOARD_PREFIX)) ||
		    strlen(entry->d_name) != strlen(BOARD_PREFIX) + BOARD_UUID_LENGTH)
			continue;
		snprintf(path, sizeof path, "%s/%.60s", BOARD_FOLDER, entry->d_name);
		if (region_open(path, &region))
			continue;
		region_remove_if_idle(region, path);
		region_unlock(region);
		munmap(region, sizeof *region);
	}
	closedir(folder);
}

void board_close(struct board *board)
{
	if (!board)
		return;
	if (board->self)
		board_retire(board);
	board_free(board);
}

const struct board_identity *board_identity(const struct board *board)
{
	return &board->identity;
}

const struct board_model *board_model(const struct board *board)
{
	return &board->region->model;
}

/* ---- accounts ---- */

int board_memory_take(struct board *board, uint64_t bytes)
{
	struct board_region *region = board->region;
	uint64_t total = region->model.memory_bytes;
	int error = 0;

	region_lock(region);
	if (bytes > total || region_used(region) > total - bytes) {
		/* Before saying no, look whether some of it belongs to the dead. */
		region_sweep(region);
		if (bytes > total || region_used(region) > total - bytes)
			error = -ENOMEM;
	}
	if (!error)
		board->self->used_bytes += bytes;
	region_unlock(region);
	return error;
}

void board_memory_give(struct board *board, uint64_t bytes)
{
	region_lock(board->region);
	board->self->used_bytes -= bytes < board->self->used_bytes ? bytes : board->self->used_bytes;
	region_unlock(board->region);
}

uint64_t board_memory_used(struct board *board)
{
	uint64_t used;

	region_lock(board->region);
	region_sweep(board->region);
	used = region_used(board->region);
	region_unlock(board->region);
	return used;
}

void board_context_enter(struct board *board)
{
	region_lock(board->region);
	board->self->contexts++;
	region_unlock(board->region);
}

void board_context_leave(struct board *board)
{
	region_lock(board->region);
	if (board->self->contexts)
		board->self->contexts--;
	region_unlock(board->region);
}

size_t board_processes(struct board *board, struct board_process *list, size_t room)
{
	size_t count = 0;

	region_lock(board->region);
	region_sweep(board->region);
	for (unsigned i = 0; i < BOARD_USER_MAX; i++) {
		const struct board_user *user = &board->region->users[i];

		if (!user->pid || !user->contexts)
			continue;
		if (count < room)
			list[count] = (struct board_process){ user->pid, user->used_bytes };
		count++;
	}
	region_unlock(board->region);
	return count;
}

/* Spread a busy span over the windows that it touches. */
static void user_add_span(struct board_user *user, uint64_t from, uint64_t to)
{
	uint64_t newest = to / BOARD_WINDOW_NS;
	uint64_t oldest = from / BOARD_WINDOW_NS;

	user->busy_ns += to - from;
	if (newest - oldest >= BOARD_WINDOW_COUNT)
		oldest = newest - BOARD_WINDOW_COUNT + 1;
	for (uint64_t epoch = oldest; epoch <= newest; epoch++) {
		struct board_window *window = &user->windows[epoch % BOARD_WINDOW_COUNT];
		uint64_t start = epoch * BOARD_WINDOW_NS, end = start + BOARD_WINDOW_NS;

		if (window->epoch != epoch)
			*window = (struct board_window){ .epoch = epoch };
		window->busy_ns += (to < end ? to : end) - (from > start ? from : start);
	}
}

void board_busy_begin(struct board *board)
{
	pthread_mutex_lock(&board->busy_lock);
	if (!board->busy_count++) {
		region_lock(board->region);
		board->self->busy_since_ns = clock_monotonic_ns();
		region_unlock(board->region);
	}
	pthread_mutex_unlock(&board->busy_lock);
}

void board_busy_end(struct board *board)
{
	pthread_mutex_lock(&board->busy_lock);
	if (!--board->busy_count) {
		uint64_t now = clock_monotonic_ns();

		region_lock(board->region);
		if (board->self->busy_since_ns)
			user_add_span(board->self, board->self->busy_since_ns, now);
		board->self->busy_since_ns = 0;
		region_unlock(board->region);
	}
	pthread_mutex_unlock(&board->busy_lock);
}

unsigned board_utilization(struct board *board)
{
	uint64_t now = clock_monotonic_ns(), current = now / BOARD_WINDOW_NS, total = 0;

	region_lock(board->region);
	for (unsigned i = 0; i < BOARD_USER_MAX; i++) {
		struct board_user user = board->region->users[i];

		if (!user.pid)
			continue;
		if (user.busy_since_ns && user.busy_since_ns < now)
			user_add_span(&user, user.busy_since_ns, now);
		for (uint64_t back = 1; back <= BOARD_WINDOWS_READ && back <= current; back++) {
			uint64_t epoch = current - back;
			const struct board_window *window =
				&user.windows[epoch % BOARD_WINDOW_COUNT];

			if (window->epoch == epoch)
				total += window->busy_ns;
		}
	}
	region_unlock(board->region);
	total = total * 100 / (BOARD_WINDOWS_READ * BOARD_WINDOW_NS);
	return total > 100 ? 100 : (unsigned)total;
}

uint64_t board_busy_ns(struct board *board)
{
	uint64_t now = clock_monotonic_ns(), total = 0;

	region_lock(board->region);
	for (unsigned i = 0; i < BOARD_USER_MAX; i++) {
		const struct board_user *user = &board->region->users[i];

		total += user->busy_ns;
		if (user->busy_since_ns && user->busy_since_ns < now)
			total += now - user->busy_since_ns;
	}
	region_unlock(board->region);
	return total;
}
