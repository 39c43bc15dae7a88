/* Two streams make progress at the same time: each waits for the other. */
#include "driver.h"

static pthread_barrier_t meeting;

static void meet(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&meeting);
}

int main(void)
{
	CUstream streams[2];

	begin();
	pthread_barrier_init(&meeting, NULL, 2);
	for (int i = 0; i < 2; i++)
		CHECK(cuStreamCreate(&streams[i], CU_STREAM_DEFAULT));
	for (int i = 0; i < 2; i++)
		CHECK(cuLaunchHostFunc(streams[i], meet, NULL));
	CHECK(cuCtxSynchronize());
	return 0;
}
