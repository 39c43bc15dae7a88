/* Forks while the shim dials a server again: prints how many sockets the child has then. */
#include "../calls.h"
#include "sockets.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	int before, status;
	pid_t child;

	CHECK(cuInit(0));
	before = sockets();
	printf("%d\n", before);
	fflush(stdout);
	while (sockets() == before)
		sched_yield();
	child = fork();
	if (!child)
		_exit(sockets());
	REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status));
	printf("%d\n", WEXITSTATUS(status));
	fflush(stdout);
	_exit(0);
}
