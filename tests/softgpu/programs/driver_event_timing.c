/* Events measure when the stream reached them. */
#include "driver.h"

#include <time.h>

static double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* Keep the stream busy for some real time. */
static void spin(void *argument)
{
	double end = now_ms() + *(double *)argument;

	while (now_ms() < end)
		;
}

int main(void)
{
	double wanted = 20, begun;
	CUevent start, end;
	CUstream stream;
	float elapsed;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
	CHECK(cuEventCreate(&start, CU_EVENT_DEFAULT));
	CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
	begun = now_ms();
	CHECK(cuEventRecord(start, stream));
	CHECK(cuLaunchHostFunc(stream, spin, &wanted));
	CHECK(cuEventRecord(end, stream));
	CHECK(cuEventSynchronize(end));
	CHECK(cuEventElapsedTime(&elapsed, start, end));
	REQUIRE(elapsed >= wanted);
	REQUIRE(elapsed <= now_ms() - begun);
	CHECK(cuEventElapsedTime(&elapsed, end, start));
	REQUIRE(elapsed < 0);
	return 0;
}
