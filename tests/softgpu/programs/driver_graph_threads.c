/* Threads that build, capture, launch, update and destroy at once, each its own graphs, with events and
 * allocations between: nothing is mixed up. */
#include "graph.h"

#define THREADS 4
#define ROUNDS 25

static CUcontext context;

struct worker {
	pthread_t thread;
	CUdeviceptr words[2];
	unsigned number;
};

/* words[0] = value; words[1] = words[0], in two streams. */
static CUgraph capture(const struct worker *worker, CUstream stream, CUstream side, CUevent event,
		       unsigned value)
{
	CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(launch_store(kernel("store"), worker->words[0], value, stream));
	CHECK(cuEventRecord(event, stream));
	CHECK(cuStreamWaitEvent(side, event, 0));
	CHECK(cuMemcpyDtoDAsync(worker->words[1], worker->words[0], 4, side));
	CHECK(cuEventRecord(event, side));
	CHECK(cuStreamWaitEvent(stream, event, 0));
	return end_capture(stream);
}

static void *work(void *argument)
{
	const struct worker *worker = argument;
	CUgraphExecUpdateResultInfo info;
	CUgraphExec executable = NULL;
	CUstream stream, side;
	CUevent event;

	CHECK(cuCtxSetCurrent(context));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	for (unsigned round = 0; round < ROUNDS; round++) {
		unsigned value = worker->number * 1000 + round, seen = 0;
		CUgraph graph = capture(worker, stream, side, event, value);

		if (executable)
			CHECK(cuGraphExecUpdate(executable, graph, &info));
		else
			executable = instantiate(graph);
		CHECK(cuGraphDestroy(graph));
		CHECK(cuGraphLaunch(executable, stream));
		CHECK(cuMemcpyDtoHAsync(&seen, worker->words[1], 4, stream));
		CHECK(cuStreamSynchronize(stream));
		REQUIRE_EQUAL(seen, value);
		if (round % 5 == 4) {
			CHECK(cuGraphLaunch(executable, side));
			CHECK(cuGraphExecDestroy(executable));
			executable = NULL;
			CHECK(cuStreamSynchronize(side));
		}
	}
	if (executable)
		CHECK(cuGraphExecDestroy(executable));
	CHECK(cuEventDestroy(event));
	CHECK(cuStreamDestroy(side));
	CHECK(cuStreamDestroy(stream));
	return NULL;
}

int main(void)
{
	struct worker workers[THREADS];

	context = begin();
	kernel("store");
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i].number = i;
		for (unsigned k = 0; k < 2; k++)
			workers[i].words[k] = new_word(0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		REQUIRE(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(workers[i].thread, NULL);
	return 0;
}
