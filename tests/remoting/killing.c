/* Preloaded: ends its process with SIGKILL at the point that FARBUS_TEST_KILL names, as "mmap 3 before", if there is a file
 * of the name FARBUS_TEST_KILL_ONCE, which it removes: one process ends so.  Of mapping, sending and receiving, what is
 * shared counts: memory of files, and messages with descriptors. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static _Atomic int begun;

/* What is before is not counted. */
void killing_begin(void)
{
	begun = 1;
}

void killing_reached(const char *call, int behind)
{
	static _Atomic unsigned reached;
	const char *point = getenv("FARBUS_TEST_KILL"), *once = getenv("FARBUS_TEST_KILL_ONCE");
	char name[64], where[16];
	unsigned at;

	if (!begun || !point || !once || sscanf(point, "%63s %u %15s", name, &at, where) != 3 || strcmp(name, call) ||
	    strcmp(where, behind ? "behind" : "before"))
		return;
	if (atomic_fetch_add(&reached, 1) + 1 >= at && unlink(once) == 0)
		kill(getpid(), SIGKILL);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int descriptor, off_t offset)
{
	const int counts = descriptor >= 0 && flags & MAP_SHARED && protection & PROT_WRITE;
	void *memory;

	if (counts)
		killing_reached("mmap", 0);
	memory = NEXT(mmap)(address, bytes, protection, flags, descriptor, offset);
	if (counts)
		killing_reached("mmap", 1);
	return memory;
}

void *mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...)
{
	va_list list;
	void *wish;

	va_start(list, flags);
	wish = flags & MREMAP_FIXED ? va_arg(list, void *) : NULL;
	va_end(list);
	killing_reached("mremap", 0);
	wish = NEXT(mremap)(old, old_bytes, bytes, flags, wish);
	killing_reached("mremap", 1);
	return wish;
}

int munmap(void *address, size_t bytes)
{
	int rc;

	killing_reached("munmap", 0);
	rc = NEXT(munmap)(address, bytes);
	killing_reached("munmap", 1);
	return rc;
}

int memfd_create(const char *name, unsigned flags)
{
	int rc;

	killing_reached("memfd_create", 0);
	rc = NEXT(memfd_create)(name, flags);
	killing_reached("memfd_create", 1);
	return rc;
}

int fallocate(int descriptor, int mode, off_t offset, off_t bytes)
{
	int rc;

	killing_reached("fallocate", 0);
	rc = NEXT(fallocate)(descriptor, mode, offset, bytes);
	killing_reached("fallocate", 1);
	return rc;
}

ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags)
{
	const int counts = message->msg_controllen > 0;
	ssize_t rc;

	if (counts)
		killing_reached("sendmsg", 0);
	rc = NEXT(sendmsg)(descriptor, message, flags);
	if (counts)
		killing_reached("sendmsg", 1);
	return rc;
}

ssize_t recvmsg(int descriptor, struct msghdr *message, int flags)
{
	ssize_t rc = NEXT(recvmsg)(descriptor, message, flags);

	if (rc > 0 && message->msg_controllen > 0)
		killing_reached("recvmsg", 1);
	return rc;
}
