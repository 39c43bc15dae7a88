/* Preloaded: a process that may use PROCESSORS processors, and that leaves the file PROCESSORS_WANTED where a thread asks
 * whether another one wants its own, as whoever spins on does (native/transport/frames/inbox.c).  With PROCESSORS_IDLE
 * nobody does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int sched_getaffinity(pid_t thread, size_t bytes, cpu_set_t *set)
{
	(void)thread;
	memset(set, 0, bytes);
	for (int i = 0; i < atoi(getenv("PROCESSORS")); i++)
		CPU_SET_S(i, bytes, set);
	return 0;
}

int getrusage(__rusage_who_t who, struct rusage *usage)
{
	int rc = (int)syscall(SYS_getrusage, who, usage);

	if (who == RUSAGE_THREAD) {
		int before;

		/* getrusage is no cancellation point. */
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
		close(open(getenv("PROCESSORS_WANTED"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
		pthread_setcancelstate(before, &before);
	}
	if (who == RUSAGE_THREAD && getenv("PROCESSORS_IDLE"))
		usage->ru_nivcsw = 0;
	return rc;
}
