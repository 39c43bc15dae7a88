/* Host functions run in stream order and may not call CUDA. */
#include "driver.h"

static CUresult inside;
static int order[3], count;

static void call_cuda(void *argument)
{
	size_t bytes;

	inside = cuMemGetInfo(&bytes, &bytes);
	order[count++] = (int)(intptr_t)argument;
}

static void note(CUstream stream, CUresult status, void *argument)
{
	(void)stream;
	REQUIRE_EQUAL(status, CUDA_SUCCESS);
	order[count++] = (int)(intptr_t)argument;
}

int main(void)
{
	CUstream stream;
	size_t bytes;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
	CHECK(cuLaunchHostFunc(stream, call_cuda, (void *)1));
	CHECK(cuStreamAddCallback(stream, note, (void *)2, 0));
	CHECK(cuLaunchHostFunc(stream, call_cuda, (void *)3));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(count, 3);
	for (int i = 0; i < 3; i++)
		REQUIRE_EQUAL(order[i], i + 1);
	REQUIRE_EQUAL(inside, CUDA_ERROR_NOT_PERMITTED);
	CHECK(cuMemGetInfo(&bytes, &bytes));
	EXPECT(cuLaunchHostFunc(stream, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
