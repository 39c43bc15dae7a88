/* See clofork.h. */
#include "clofork.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

/* A program that has closed all descriptors may own a number now: the file tells. */
struct noted {
	int descriptor;
	dev_t device;
	ino_t inode;	/* 0: none is noted here */
};

/* Held in sections, and by a thread that forks.  No other lock is taken under it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct noted noted[CLOFORK_MOST];
static struct clofork_section forking;

void clofork_begin(struct clofork_section *section)
{
	static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
	sigset_t signals;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &section->cancel);
	sigfillset(&signals);
	/* Other handlers of a fork may touch what their own handlers of faults provide. */
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&signals, faults[i]);
	pthread_sigmask(SIG_BLOCK, &signals, &section->signals);
	pthread_mutex_lock(&lock);
}

void clofork_end(const struct clofork_section *section)
{
	int cancel;

	pthread_mutex_unlock(&lock);
	pthread_sigmask(SIG_SETMASK, &section->signals, NULL);
	pthread_setcancelstate(section->cancel, &cancel);
}

void clofork_prepare(void)
{
	struct clofork_section section;

	clofork_begin(&section);
	forking = section;
}

void clofork_parent(void)
{
	const struct clofork_section section = forking;

	clofork_end(&section);
}

void clofork_child(void)
{
	struct stat status;

	for (size_t i = 0; i < CLOFORK_MOST; i++) {
		if (noted[i].inode && fstat(noted[i].descriptor, &status) == 0 && status.st_dev == noted[i].device &&
		    status.st_ino == noted[i].inode)
			close(noted[i].descriptor);
		noted[i].inode = 0;
	}
	clofork_parent();
}

static struct noted *noted_find(int descriptor)
{
	for (size_t i = 0; i < CLOFORK_MOST; i++)
		if (noted[i].inode && noted[i].descriptor == descriptor)
			return &noted[i];
	return NULL;
}

/* Whatever had its number before is closed. */
void clofork_note(int descriptor)
{
	struct noted *at = noted_find(descriptor);
	struct stat status;

	for (size_t i = 0; !at && i < CLOFORK_MOST; i++)
		if (!noted[i].inode)
			at = &noted[i];
	if (at && fstat(descriptor, &status) == 0)
		*at = (struct noted){ descriptor, status.st_dev, status.st_ino };
}

static void noted_forget(int descriptor)
{
	struct noted *at = noted_find(descriptor);

	if (at)
		at->inode = 0;
}

int clofork_raise(int descriptor, int lowest)
{
	struct clofork_section section;
	int high = -1;

	clofork_begin(&section);
	if (descriptor >= 0 && descriptor < lowest)
		high = fcntl(descriptor, F_DUPFD_CLOEXEC, lowest);
	if (high >= 0) {
		if (noted_find(descriptor))
			clofork_note(high);
		noted_forget(descriptor);
		close(descriptor);
	}
	clofork_end(&section);
	return high < 0 ? descriptor : high;
}

int clofork_copy(int descriptor, int over)
{
	struct clofork_section section;
	int rc;

	clofork_begin(&section);
	rc = dup3(descriptor, over, O_CLOEXEC) < 0 ? -errno : 0;
	if (!rc && noted_find(descriptor))
		clofork_note(over);
	clofork_end(&section);
	return rc;
}

void clofork_close(int descriptor)
{
	struct clofork_section section;

	clofork_begin(&section);
	noted_forget(descriptor);
	close(descriptor);
	clofork_end(&section);
}

void clofork_forget(int descriptor)
{
	struct clofork_section section;

	clofork_begin(&section);
	noted_forget(descriptor);
	clofork_end(&section);
}
