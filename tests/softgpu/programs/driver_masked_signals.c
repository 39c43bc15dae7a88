/* A thread that has blocked all signals waits for a kernel that faults. */
#include "driver.h"

#include <signal.h>

int main(void)
{
	sigset_t all, after;
	CUfunction store;

	begin();
	store = kernel("store");
	sigfillset(&all);
	REQUIRE(!pthread_sigmask(SIG_SETMASK, &all, NULL));
	CHECK(launch_store(store, 0x10, 1, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	REQUIRE(!pthread_sigmask(SIG_SETMASK, NULL, &after));
	REQUIRE(sigismember(&after, SIGSEGV) && sigismember(&after, SIGTERM));
	return 0;
}
