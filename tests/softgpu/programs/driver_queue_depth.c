/* More operations than a queue holds: the submitter waits, nothing is lost and
 * nothing overtakes. */
#include "driver.h"

#define COUNT 5000

static int next;

static void expect_next(void *argument)
{
	if (next != (int)(intptr_t)argument)
		exit(2);
	next++;
}

int main(void)
{
	CUstream stream;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (intptr_t i = 0; i < COUNT; i++)
		CHECK(cuLaunchHostFunc(stream, expect_next, (void *)i));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(next, COUNT);
	return 0;
}
