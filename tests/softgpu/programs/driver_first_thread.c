/* A process whose first thread has ended has what it has, as long as others of it run. */
#include "driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>

#define SIZE (4ul << 20)

static int told[2];
static pid_t child;

/* Another process, which looks after the accounts of those that have ended. */
static void other(void)
{
	size_t available, total;
	char byte;

	REQUIRE(read(told[0], &byte, 1) == 1);
	begin();
	CHECK(cuMemGetInfo(&available, &total));
	REQUIRE(total - available >= SIZE);
	exit(0);
}

/* It is a zombie then, as proc(5) shows it. */
static bool first_thread_has_ended(void)
{
	char path[64], text[1024];
	ssize_t got;
	int fd;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
	fd = open(path, O_RDONLY);
	REQUIRE(fd >= 0);
	got = read(fd, text, sizeof text - 1);
	close(fd);
	REQUIRE(got > 0);
	text[got] = '\0';
	return strstr(text, ") Z ");
}

static void *live_on(void *unused)
{
	int status;

	(void)unused;
	while (!first_thread_has_ended())
		sched_yield();
	REQUIRE(write(told[1], "", 1) == 1);
	REQUIRE(waitpid(child, &status, 0) == child);
	REQUIRE(WIFEXITED(status) && !WEXITSTATUS(status));
	exit(0);
}

int main(void)
{
	CUdeviceptr memory;
	pthread_t thread;

	REQUIRE(pipe(told) == 0);
	child = fork();
	REQUIRE(child >= 0);
	if (!child)
		other();
	begin();
	CHECK(cuMemAlloc(&memory, SIZE));
	REQUIRE(pthread_create(&thread, NULL, live_on, NULL) == 0);
	pthread_exit(NULL);
}
