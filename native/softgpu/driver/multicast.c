#include "multicast.h"

#include "arena.h"
#include "virtual_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Multicast objects: a team of devices, each of which binds memory to a range that they have in common.
 *
 * Who belongs to the team and what is bound stands in a file that its processes map.  It says which descriptor of
 * which process the memory is: others open that when a kernel first gets there (as those of cuIpcGetMemHandle,
 * api/ipc.c), and keep it until something else is bound.  Who has bound memory keeps it, and the descriptor, until
 * it is unbound, or the process has let go of the object.
 */

#define GRANULE DRIVER_ARENA_GRANULE
#define TEAM_MAGIC 0x4d545046u		/* "FPTM" */
#define BINDS_MAX 1024u			/* of a team at a time */

struct bind {
	uint64_t id;			/* counts up; 0: free */
	uint64_t offset, size;		/* bytes, in the range of the team */
	uint32_t device;		/* index in the team */
	int32_t pid, fd;		/* whose descriptor is the memory */
	uint32_t reserved;
	uint64_t inode, file_device;	/* what that descriptor is must be it */
	uint64_t file_offset;
};

/* Sealed at this size; other processes may write to it. */
struct shared {
	uint32_t magic;
	uint32_t limit;			/* devices that there will be */
	uint64_t size;			/* bytes for each of them */
	uint32_t shareable;
	_Atomic uint32_t count;		/* devices that there are; futex */
	uint8_t uuids[BOARD_COUNT_MAX][16];
	pthread_mutex_t lock;		/* process-shared and robust: a holder may die */
	uint64_t ids;
	uint32_t used;			/* binds behind it are free */
	struct bind binds[BINDS_MAX];
};

/* What this process has of a bind. */
struct slot {
	uint64_t id;			/* that the view is of */
	char *view;			/* or NULL */
	size_t bytes;
	uint64_t own;			/* that this process has bound, or 0 */
	struct driver_part part;	/* of that */
};

struct driver_team {
	struct driver_team *next;	/* of all of this process */
	unsigned references;
	int fd;
	ino_t inode;
	uint32_t limit;			/* as it was checked */
	size_t size;
	struct shared *shared;
	struct slot slots[BINDS_MAX];
};

static struct driver_team *teams;

/* ---- what processes share ---- */

/* A process that died has left at most a bind half-written, of which the id comes last. */
static void lock_shared(struct shared *shared)
{
	if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&shared->lock);
}

static uint32_t binds_used(const struct shared *shared)
{
	return shared->used < BINDS_MAX ? shared->used : BINDS_MAX;
}

static void shared_init(struct shared *shared, const CUmulticastObjectProp *properties)
{
	pthread_mutexattr_t attributes;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&shared->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	shared->limit = properties->numDevices;
	shared->size = properties->size;
	shared->shareable = properties->handleTypes != 0;
	shared->magic = TEAM_MAGIC;
}

/* ---- teams of this process ---- */

/* Takes the file over; `properties`: of one that is new.  NULL: it is none, or memory is short. */
static struct driver_team *team_make(int fd, const CUmulticastObjectProp *properties)
{
	struct driver_team *team = calloc(1, sizeof *team);
	struct shared *shared = MAP_FAILED;
	struct stat status;

	if (!team || fstat(fd, &status) || status.st_size != sizeof *shared)
		goto out_close;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED)
		goto out_close;
	if (properties)
		shared_init(shared, properties);
	*team = (struct driver_team){
		.references = 1, .fd = fd, .inode = status.st_ino, .limit = shared->limit,
		.size = shared->size, .shared = shared, .next = teams,
	};
	if (shared->magic != TEAM_MAGIC || !team->limit || team->limit > BOARD_COUNT_MAX ||
	    !team->size || team->size % GRANULE)
		goto out_unmap;
	teams = team;
	return team;
out_unmap:
	munmap(shared, sizeof *shared);
out_close:
	close(fd);
	free(team);
	return NULL;
}

struct driver_team *driver_team_make(const CUmulticastObjectProp *properties)
{
	int fd = driver_virtual_file_of(DRIVER_VIRTUAL_TEAM, sizeof(struct shared));

	return fd < 0 ? NULL : team_make(fd, properties);
}

struct driver_team *driver_team_import(int fd)
{
	struct driver_team *team;
	struct stat status;
	int own;

	if (!driver_virtual_is_team(fd) || fstat(fd, &status))
		return NULL;
	for (team = teams; team; team = team->next) {
		if (team->inode == status.st_ino) {
			team->references++;
			return team;
		}
	}
	own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return own < 0 ? NULL : team_make(own, NULL);
}

void driver_team_hold(struct driver_team *team)
{
	team->references++;
}

static void view_close(struct slot *slot)
{
	if (slot->view)
		munmap(slot->view, slot->bytes);
	slot->view = NULL;
}

void driver_team_drop(struct driver_team *team)
{
	struct driver_team **link = &teams;

	if (--team->references)
		return;
	lock_shared(team->shared);
	for (unsigned i = 0; i < BINDS_MAX; i++) {
		if (team->slots[i].own && team->shared->binds[i].id == team->slots[i].own)
			team->shared->binds[i].id = 0;
	}
	pthread_mutex_unlock(&team->shared->lock);
	for (unsigned i = 0; i < BINDS_MAX; i++) {
		view_close(&team->slots[i]);
		if (team->slots[i].own)
			driver_virtual_let_go(&team->slots[i].part);
	}
	while (*link != team)
		link = &(*link)->next;
	*link = team->next;
	munmap(team->shared, sizeof *team->shared);
	close(team->fd);
	free(team);
}

size_t driver_team_size(const struct driver_team *team)
{
	return team->size;
}

bool driver_team_is_shareable(const struct driver_team *team)
{
	return team->shared->shareable;
}

int driver_team_file(const struct driver_team *team)
{
	return team->fd;
}

static uint32_t device_count(const struct driver_team *team)
{
	uint32_t count = atomic_load(&team->shared->count);

	return count < team->limit ? count : team->limit;
}

/* -1: it does not belong to the team. */
static int device_index(const struct driver_team *team, const struct driver_device *device)
{
	for (uint32_t i = 0; i < device_count(team); i++) {
		if (!memcmp(team->shared->uuids[i], device->identity->uuid, 16))
			return (int)i;
	}
	return -1;
}

struct driver_device *driver_team_device(const struct driver_team *team)
{
	for (int i = 0; i < driver_device_count(); i++) {
		if (device_index(team, driver_device_at(i)) >= 0)
			return driver_device_at(i);
	}
	return NULL;
}

static CUresult add_device(struct driver_team *team, const struct driver_device *device)
{
	uint32_t count = device_count(team);

	if (count == team->limit || device_index(team, device) >= 0)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(team->shared->uuids[count], device->identity->uuid, 16);
	atomic_store(&team->shared->count, count + 1);
	syscall(SYS_futex, &team->shared->count, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	return CUDA_SUCCESS;
}

CUresult driver_team_add(struct driver_team *team, const struct driver_device *device)
{
	CUresult result;

	lock_shared(team->shared);
	result = add_device(team, device);
	pthread_mutex_unlock(&team->shared->lock);
	return result;
}

void driver_team_wait(struct driver_team *team)
{
	uint32_t count;

	while ((count = atomic_load(&team->shared->count)) < team->limit)
		syscall(SYS_futex, &team->shared->count, FUTEX_WAIT, count, NULL, NULL, 0);
}

/* ---- where addresses lead ---- */

/* Open what a bind says, which another process has written. */
static bool view_open(struct slot *slot, const struct bind *bind)
{
	struct stat status;
	char path[48];
	void *view = MAP_FAILED;
	int fd;

	view_close(slot);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)bind->pid, (int)bind->fd);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return false;
	if (driver_virtual_is_memory(fd) && !fstat(fd, &status) && status.st_ino == bind->inode &&
	    status.st_dev == bind->file_device && bind->file_offset <= (uint64_t)status.st_size &&
	    bind->size <= (uint64_t)status.st_size - bind->file_offset)
		view = mmap(NULL, bind->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)bind->file_offset);
	close(fd);
	if (view == MAP_FAILED)
		return false;
	slot->view = view;
	slot->bytes = bind->size;
	slot->id = bind->id;
	return true;
}

/* With the lock of both: the bind of a device that covers an offset, or NULL. */
static struct bind *bind_at(const struct driver_team *team, uint32_t device, uint64_t offset, uint64_t size)
{
	for (uint32_t i = 0; i < binds_used(team->shared); i++) {
		struct bind *bind = &team->shared->binds[i];

		if (bind->id && bind->device == device && bind->offset < offset + size &&
		    offset < bind->offset + bind->size)
			return bind;
	}
	return NULL;
}

static const char *find_replicas(struct driver_team *team, size_t offset, struct engine_replicas *found)
{
	uint64_t from = 0, to = team->size;

	if (device_count(team) < team->limit)
		return "its multicast object waits for more devices";
	for (uint32_t i = 0; i < team->limit; i++) {
		const struct bind *at = bind_at(team, i, offset, 1);
		struct slot *slot = at ? &team->slots[at - team->shared->binds] : NULL;
		struct bind bind;

		if (!at)
			return "a device of the multicast object has bound no memory there";
		bind = *at;
		if ((!slot->view || slot->id != bind.id) && !view_open(slot, &bind))
			return "memory that is bound there is another process's that has ended or can't be looked into";
		found->memory[i] = slot->view + (offset - bind.offset);
		from = bind.offset > from ? bind.offset : from;
		to = bind.offset + slot->bytes < to ? bind.offset + slot->bytes : to;
	}
	for (uint32_t i = 0; i < team->limit; i++)
		found->memory[i] -= offset - from;
	found->count = team->limit;
	found->base = from;
	found->bytes = to - from;
	return NULL;
}

const char *driver_team_find(struct driver_team *team, size_t offset, struct engine_replicas *found)
{
	const char *why;

	lock_shared(team->shared);
	why = find_replicas(team, offset, found);
	pthread_mutex_unlock(&team->shared->lock);
	return why;
}

/* ---- what is bound ---- */

/* Takes the part over when it succeeds; `status`: of its file. */
static CUresult bind_put(struct driver_team *team, uint32_t device, uint64_t offset, uint64_t size,
			 const struct driver_part *part, const struct stat *status)
{
	struct shared *shared = team->shared;
	struct bind *bind;
	uint32_t i = 0;

	if (bind_at(team, device, offset, size))
		return CUDA_ERROR_INVALID_VALUE;
	while (i < BINDS_MAX && (shared->binds[i].id || team->slots[i].own))
		i++;
	if (i == BINDS_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	bind = &shared->binds[i];
	*bind = (struct bind){
		.offset = offset, .size = size, .device = device, .pid = getpid(), .fd = part->fd,
		.inode = status->st_ino, .file_device = status->st_dev, .file_offset = part->offset,
	};
	if (shared->used <= i)
		shared->used = i + 1;
	bind->id = ++shared->ids;
	team->slots[i].part = *part;
	team->slots[i].own = bind->id;
	return CUDA_SUCCESS;
}

/* What another process has unbound is no longer kept here. */
static void settle(struct driver_team *team)
{
	for (unsigned i = 0; i < BINDS_MAX; i++) {
		struct slot *slot = &team->slots[i];

		if (!slot->own || team->shared->binds[i].id == slot->own)
			continue;
		view_close(slot);
		driver_virtual_let_go(&slot->part);
		slot->own = 0;
	}
}

CUresult driver_team_bind(struct driver_team *team, size_t offset, size_t size, struct driver_part *part)
{
	int device = device_index(team, part->device);
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct stat status;

	/* What others can have is bound to memory alone that they can have, too. */
	if (device >= 0 && !fstat(part->fd, &status) && (part->shareable || !team->shared->shareable)) {
		lock_shared(team->shared);
		settle(team);
		result = bind_put(team, (uint32_t)device, offset, size, part, &status);
		pthread_mutex_unlock(&team->shared->lock);
	} else if (device < 0) {
		result = CUDA_ERROR_INVALID_DEVICE;
	}
	if (result)
		driver_virtual_let_go(part);
	return result;
}

CUresult driver_team_unbind(struct driver_team *team, const struct driver_device *device, size_t offset,
			    size_t size)
{
	int index = device_index(team, device);
	CUresult result = CUDA_SUCCESS;
	struct bind *bind = NULL;

	if (index < 0)
		return CUDA_ERROR_INVALID_VALUE;
	lock_shared(team->shared);
	if (size)
		bind = bind_at(team, (uint32_t)index, offset, 1);
	/* CUDA asks for the values that were bound. */
	if (bind && bind->offset == offset && bind->size == size)
		bind->id = 0;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	settle(team);
	pthread_mutex_unlock(&team->shared->lock);
	return result;
}
