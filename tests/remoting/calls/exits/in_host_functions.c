/* Host functions and callbacks that end the thread which they are called on: what comes behind them in their streams
 * comes all the same, also more of them than there may be such threads. */
#include "../calls.h"

#include <pthread.h>
#include <stdatomic.h>

#define TIMES 100
#define LAUNCHES 50

static _Atomic int called;

static void leave(void *argument)
{
	called += *(int *)argument;
	pthread_exit(NULL);
}

static void leave_back(CUstream stream, CUresult status, void *argument)
{
	(void)stream;
	called += status == CUDA_SUCCESS;
	leave(argument);
}

int main(void)
{
	static int one = 1;
	CUgraphExec executable;
	CUdeviceptr device;
	CUstream stream;
	CUgraph graph;
	unsigned word = 0;

	begin();
	CHECK(cuMemAlloc_v2(&device, sizeof(word)));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < TIMES; i++)
		CHECK(cuLaunchHostFunc(stream, leave, &one));
	CHECK(cuStreamAddCallback(stream, leave_back, &one, 0));
	CHECK(cuMemsetD32Async(device, 5, 1, stream));
	CHECK(cuMemcpyDtoHAsync_v2(&word, device, sizeof(word), stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word, 5);
	REQUIRE_EQUAL(called, TIMES + 2);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuLaunchHostFunc(stream, leave, &one));
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuGraphDestroy(graph));
	for (int i = 0; i < LAUNCHES; i++)
		CHECK(cuGraphLaunch(executable, stream));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(called, TIMES + 2 + LAUNCHES);
	puts("ok");
	return 0;
}
