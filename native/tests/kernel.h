/* What the kernel can that runs the tests. */
#ifndef FARBUS_TESTS_KERNEL_H
#define FARBUS_TESTS_KERNEL_H

#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif

/* Does it send from where the bytes lie?  Linux since 4.14, but not QEMU's emulation of it. */
static inline bool kernel_has_zerocopy(void)
{
	int one = 1, descriptor = socket(AF_INET, SOCK_STREAM, 0);
	bool has = setsockopt(descriptor, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) == 0;

	close(descriptor);
	return has;
}

#endif
