/* Memory that client and server both have: made here for it, or a file in memory that a program has already. */
#include "../ground/clofork.h"
#include "../sockets/socket.h"
#include "../transport.h"
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MEMORY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static bool is_of_the_peer(const struct transport *transport, const struct stat *status)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return getsockopt(transport->descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
	       peer.uid == status->st_uid;
}

static bool is_of_tmpfs(int descriptor)
{
	struct statfs system;

	return fstatfs(descriptor, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

/* Memory that somebody may cut off ends whoever touches it, as do huge pages that were given back by a hole and that nobody
 * has left; and who sends it must not have got hold of somebody else's. */
static bool memory_may_be_shared(const struct transport *transport, int descriptor, size_t bytes,
				 bool populated)
{
	struct stat status;
	int seals = fcntl(descriptor, F_GET_SEALS);

	return seals >= 0 && (seals & MEMORY_SEALS) == MEMORY_SEALS && !(seals & F_SEAL_WRITE) && is_of_tmpfs(descriptor) &&
	       fstat(descriptor, &status) == 0 && (size_t)status.st_size == bytes &&
	       (!populated || (uint64_t)status.st_blocks * 512 >= bytes) && is_of_the_peer(transport, &status);
}

/* The child of a fork has no part in the session. */
static void *memory_map(int descriptor, off_t offset, size_t bytes)
{
	struct clofork_section section;
	void *memory;

	clofork_begin(&section);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, offset);
	if (memory != MAP_FAILED)
		(void)madvise(memory, bytes, MADV_DONTFORK);
	clofork_end(&section);
	return memory;
}

static int memory_open(const char *name)
{
	struct clofork_section section;
	int made;

	clofork_begin(&section);
	made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (made < 0)
		made = -errno;
	clofork_note(made);
	clofork_end(&section);
	return made;
}

bool transport_memory_is_there(size_t bytes)
{
	const size_t little = 64u << 20;
	char text[512];
	const char *line;
	int file, cancel;
	ssize_t length;

	if (bytes <= little)
		return true;
	cancel = transport_cancel_disable();
	file = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	length = file < 0 ? -1 : read(file, text, sizeof(text) - 1);
	if (file >= 0)
		close(file);
	transport_cancel_restore(cancel);
	text[length < 0 ? 0 : length] = 0;
	line = strstr(text, "MemAvailable:");
	return !line || bytes >> 10 < strtoull(line + strlen("MemAvailable:"), NULL, 10);
}

/* All of it now: later there may be no memory, and writing to it would be a SIGBUS; and memory is
 * charged to who touches it first.  A signal would undo what was done so far. */
int transport_memory_populate(int descriptor, off_t offset, size_t bytes)
{
	struct rlimit limit;
	struct stat status;
	sigset_t all, before;
	int rc;

	if (fstat(descriptor, &status) == 0 && status.st_size >= offset + (off_t)bytes &&
	    lseek(descriptor, offset, SEEK_HOLE) >= offset + (off_t)bytes)
		return 0;
	/* Beyond it the kernel sends SIGXFSZ. */
	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < (rlim_t)offset + bytes)
		return -EFBIG;
	if (!transport_memory_is_there(bytes))
		return -ENOMEM;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = fallocate(descriptor, 0, offset, (off_t)bytes) < 0 ? -errno : 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

int transport_memory_make(const char *name, size_t bytes, void **memory, int *descriptor)
{
	int made = memory_open(name);
	int rc = made < 0 ? made : transport_memory_populate(made, 0, bytes);

	if (!rc && fcntl(made, F_ADD_SEALS, MEMORY_SEALS) < 0)
		rc = -errno;
	if (!rc) {
		*memory = memory_map(made, 0, bytes);
		rc = *memory == MAP_FAILED ? -ENOMEM : 0;
	}
	if (rc && made >= 0)
		clofork_close(made);
	if (!rc)
		*descriptor = made;
	return rc;
}

/* Map what may be shared, and close it in any case. */
static int memory_take(int descriptor, bool may, uint64_t offset, size_t bytes, void **memory)
{
	int rc = -EPROTO;

	if (may) {
		*memory = memory_map(descriptor, (off_t)offset, bytes);
		rc = *memory == MAP_FAILED ? -ENOMEM : 0;
	}
	close(descriptor);
	return rc;
}

int transport_memory_take(const struct transport *transport, int descriptor, size_t bytes, bool populated,
			  void **memory)
{
	return memory_take(descriptor, memory_may_be_shared(transport, descriptor, bytes, populated), 0, bytes, memory);
}

/* ---- files in memory, which are others' too ---- */

/* Of the socket's other user, in memory alone (nobody is waited for to read or write it), long enough (its last page may
 * be a part of one), and its pages are there: they are charged to who has touched them first. */
static bool file_may_be_shared(const struct transport *transport, int descriptor, uint64_t offset, size_t bytes)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct stat status;
	uint64_t end, size;

	if (__builtin_add_overflow(offset, bytes, &end) || end > INT64_MAX - page || fstat(descriptor, &status) < 0 ||
	    !S_ISREG(status.st_mode))
		return false;
	size = (uint64_t)status.st_size;
	if (size < end && (size + page - 1) / page * page < end)
		return false;
	return is_of_tmpfs(descriptor) && (fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDWR &&
	       lseek(descriptor, (off_t)offset, SEEK_HOLE) >= (off_t)(size < end ? size : end) &&
	       is_of_the_peer(transport, &status);
}

int transport_file_take(const struct transport *transport, int descriptor, uint64_t offset, size_t bytes,
			void **memory)
{
	return memory_take(descriptor, file_may_be_shared(transport, descriptor, offset, bytes), offset, bytes, memory);
}
