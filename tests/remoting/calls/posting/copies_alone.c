/* What a faulty kernel did comes to a program that only posts large copies, however fast it does: its clock stands
 * still, so that to the shim no time passes between one copy and the next. */
#include "../calls.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Far more than the server has run when it tells of the error, which is with the first. */
#define COPIES 20000

static char sent[1 << 16];
static struct timespec stopped;
static _Atomic bool stands;

/* In the place of libc's. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (!atomic_load(&stands))
		return (int)syscall(SYS_clock_gettime, clock, now);
	*now = stopped;
	return 0;
}

int main(void)
{
	CUdeviceptr memory, nowhere = 16;
	unsigned value = 1;
	void *parameters[] = { &nowhere, &value };
	CUresult result = CUDA_SUCCESS;
	CUfunction store;
	int copies;

	begin();
	store = store_kernel();
	CHECK(cuMemAlloc_v2(&memory, sizeof sent));
	CHECK(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	clock_gettime(CLOCK_MONOTONIC, &stopped);
	atomic_store(&stands, true);
	for (copies = 0; copies < COPIES && result == CUDA_SUCCESS; copies++)
		result = cuMemcpyHtoDAsync_v2(memory, sent, sizeof sent, NULL);
	atomic_store(&stands, false);
	EXPECT(result, CUDA_ERROR_ILLEGAL_ADDRESS);
	printf("ok\n");
	return 0;
}
