/* userfaultfd(2), with its faults served by a thread.
 *
 * A program's own handlers of signals are not touched, and system calls that meet a page
 * which is away wait as processors do: for that the kernel wants a privileged process,
 * vm.unprivileged_userfaultfd = 1, or the right to open /dev/userfaultfd (Linux 6.1). */
#include "paging.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../transport/ground/thread.h"

/* What headers older than Linux 5.7 and 6.1 lack. */
#ifndef UFFD_FEATURE_PAGEFAULT_FLAG_WP
#define UFFD_FEATURE_PAGEFAULT_FLAG_WP (1 << 0)
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

static int paging_fd = -1;
static paging_fault *paging_told;

static int open_descriptor(bool any)
{
	const int flags = O_CLOEXEC;
	int device, fd = (int)syscall(SYS_userfaultfd, flags);

	if (fd >= 0)
		return fd;
	device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (device >= 0) {
		fd = ioctl(device, USERFAULTFD_IOC_NEW, flags);
		close(device);
		if (fd >= 0)
			return fd;
	}
	fd = any ? (int)syscall(SYS_userfaultfd, flags | UFFD_USER_MODE_ONLY) : -1;
	return fd >= 0 ? fd : -EPERM;
}

static void *paging_thread(void *opaque)
{
	(void)opaque;
	for (;;) {
		struct uffd_msg message;
		ssize_t got = read(paging_fd, &message, sizeof(message));

		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got != (ssize_t)sizeof(message))
			return NULL;
		if (message.event == UFFD_EVENT_PAGEFAULT)
			paging_told(message.arg.pagefault.address,
				    message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WRITE,
				    message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP);
	}
}

int paging_open(bool any, paging_fault *fault)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP };
	int rc, fd = open_descriptor(any);

	if (fd < 0)
		return fd;
	if (ioctl(fd, UFFDIO_API, &api) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	paging_fd = fd;
	paging_told = fault;
	rc = transport_thread_start(NULL, paging_thread, NULL);
	if (rc) {
		close(fd);
		paging_fd = -1;
	}
	return rc;
}

int paging_register(uint64_t address, uint64_t bytes)
{
	struct uffdio_register request = {
		.range = { .start = address, .len = bytes },
		.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
	};

	return ioctl(paging_fd, UFFDIO_REGISTER, &request) < 0 ? -errno : 0;
}

int paging_protect(uint64_t address, uint64_t bytes, bool protect)
{
	struct uffdio_writeprotect request = {
		.range = { .start = address, .len = bytes },
		.mode = protect ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};
	int rc;

	do
		rc = ioctl(paging_fd, UFFDIO_WRITEPROTECT, &request);
	while (rc < 0 && errno == EAGAIN);
	return rc < 0 ? -errno : 0;
}

int paging_fill(uint64_t address, const void *from, uint64_t bytes, bool protect)
{
	uint64_t at = 0;

	while (at < bytes) {
		struct uffdio_copy request = {
			.dst = address + at,
			.src = (uint64_t)(uintptr_t)from + at,
			.len = bytes - at,
			.mode = protect ? UFFDIO_COPY_MODE_WP : 0,
		};

		if (!ioctl(paging_fd, UFFDIO_COPY, &request))
			return 0;
		if (request.copy > 0)
			at += (uint64_t)request.copy;
		else if (errno != EAGAIN)
			return -errno;
	}
	return 0;
}

void paging_wake(uint64_t address, uint64_t bytes)
{
	struct uffdio_range range = { .start = address, .len = bytes };

	ioctl(paging_fd, UFFDIO_WAKE, &range);
}
