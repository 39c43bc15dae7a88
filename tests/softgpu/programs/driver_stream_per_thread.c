/* Each thread has a default stream of its own: held back in one thread, the
 * other's still runs. */
#include "driver.h"

static CUcontext context;

static void note(void *argument)
{
	*(bool *)argument = true;
}

static void *other_thread(void *argument)
{
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuLaunchHostFunc_ptsz(NULL, note, argument));
	CHECK(cuStreamSynchronize_ptsz(NULL));
	return NULL;
}

int main(void)
{
	struct gate gate;
	pthread_t thread;
	bool ran = false;

	context = begin();
	gate_close(&gate, CU_STREAM_PER_THREAD);
	REQUIRE(!pthread_create(&thread, NULL, other_thread, &ran));
	pthread_join(thread, NULL);
	REQUIRE(ran);
	EXPECT(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	CHECK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	return 0;
}
