/* See sleeper.h. */
#include "sleeper.h"

#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

bool sleeper_make(struct sleeper *sleeper, int beside)
{
	int low = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int high = low >= 0 && low < beside ? fcntl(low, F_DUPFD_CLOEXEC, beside) : -1;
	struct stat status = { .st_ino = 0 };

	sleeper->wake = high >= 0 ? high : low;
	if (high >= 0)
		close(low);
	if (sleeper->wake >= 0 && fstat(sleeper->wake, &status) == 0)
		sleeper->inode = status.st_ino;
	return sleeper->wake >= 0;
}

/* A program that has closed all descriptors may own the number now. */
void sleeper_drop(struct sleeper *sleeper)
{
	struct stat status;

	if (sleeper->wake >= 0 && fstat(sleeper->wake, &status) == 0 && status.st_ino == sleeper->inode)
		close(sleeper->wake);
	sleeper->wake = -1;
}

void sleeper_wake(struct sleeper *sleeper)
{
	const uint64_t one = 1;

	/* A write fails where it has been woken as often as a counter can hold. */
	if (atomic_load(&sleeper->asleep) && sleeper->wake >= 0)
		(void)!write(sleeper->wake, &one, sizeof(one));
}

void sleeper_awake(struct sleeper *sleeper, short revents)
{
	uint64_t woken;

	atomic_store(&sleeper->asleep, false);
	if (revents & POLLIN)
		(void)!read(sleeper->wake, &woken, sizeof(woken));
	else if (revents)
		sleeper->wake = -1;	/* the program has closed all descriptors */
}
