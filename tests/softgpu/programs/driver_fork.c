/* A forked child has no CUDA, and its end takes nothing from the parent. */
#include "driver.h"

#include <sys/wait.h>

int main(void)
{
	size_t available, total, after;
	CUdeviceptr memory;
	int status;
	pid_t child;

	begin();
	CHECK(cuMemAlloc(&memory, 4ul << 20));
	CHECK(cuMemGetInfo(&available, &total));
	child = fork();
	REQUIRE(child >= 0);
	if (!child) {
		EXPECT(cuMemGetInfo(&available, &total), CUDA_ERROR_NOT_INITIALIZED);
		EXPECT(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
		exit(0);
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	REQUIRE(WIFEXITED(status) && !WEXITSTATUS(status));
	CHECK(cuMemGetInfo(&after, &total));
	REQUIRE_EQUAL(after, available);
	return 0;
}
