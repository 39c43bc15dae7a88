/* events_over N: an event is over when its stream was waited for, and asked for N times then; and it is not, as soon as
 * it, or another stream's, is recorded behind work that lasts: by the program, or by a graph. */
#include "../calls.h"

#include <semaphore.h>

static sem_t held;

static void hold(void *unused)
{
	(void)unused;
	sem_wait(&held);
}

static void begin_to_last(CUstream stream)
{
	CHECK(cuLaunchHostFunc(stream, hold, NULL));
}

static void expect_over(CUevent event, int times)
{
	for (int i = 0; i < times; i++) {
		CHECK(cuEventQuery(event));
		CHECK(cuEventSynchronize(event));
	}
}

/* What lasts ends, and is waited for. */
static void expect_lasting(CUevent event, CUstream stream)
{
	EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	sem_post(&held);
	CHECK(cuEventSynchronize(event));
	CHECK(cuEventQuery(event));
	CHECK(cuStreamSynchronize(stream));
}

/* A graph that lasts, and then records the event. */
static CUgraphExec graph_that_records(CUcontext context, CUevent event)
{
	CUDA_HOST_NODE_PARAMS function = { .fn = hold };
	CUgraphNode first, second;
	CUgraphExec executable;
	CUgraph graph;

	(void)context;
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddHostNode(&first, graph, NULL, 0, &function));
	CHECK(cuGraphAddEventRecordNode(&second, graph, &first, 1, event));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuGraphDestroy(graph));
	return executable;
}

static CUgraphExec capture_that_records(CUstream stream, CUevent event)
{
	CUgraphExec executable;
	CUgraph graph;

	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	begin_to_last(stream);
	CHECK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CHECK(cuGraphDestroy(graph));
	return executable;
}

int main(int argc, char **argv)
{
	CUevent event, other, recorded, captured;
	CUgraphExec executable;
	CUstream stream, second;
	CUcontext context;
	CUgraph graph;
	int times;

	REQUIRE(argc == 2 && sem_init(&held, 0, 0) == 0);
	times = atoi(argv[1]);
	context = begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventCreate(&other, CU_EVENT_DEFAULT));
	CHECK(cuEventCreate(&recorded, CU_EVENT_DEFAULT));
	CHECK(cuEventCreate(&captured, CU_EVENT_DEFAULT));
	for (int way = 0; way < 5; way++) {
		CUstream in = way < 3 ? stream : way == 3 ? CU_STREAM_LEGACY : NULL;

		CHECK(cuEventRecord(event, in));
		CHECK(cuEventRecord(other, in));
		switch (way) {
		case 0:
			CHECK(cuStreamSynchronize(stream));
			break;
		case 1:
			CHECK(cuCtxSynchronize());
			break;
		case 2:
			CHECK(cuEventSynchronize(other));
			break;
		default:
			CHECK(cuStreamSynchronize(in));
			break;
		}
		expect_over(event, times);
		expect_over(other, times);
		begin_to_last(stream);
		CHECK(cuEventRecord(event, stream));
		expect_lasting(event, stream);
		expect_over(event, times);
	}
	/* One stream says nothing of another. */
	begin_to_last(second);
	CHECK(cuEventRecord(other, second));
	CHECK(cuEventRecord(event, stream));
	CHECK(cuStreamSynchronize(stream));
	expect_over(event, times);
	expect_lasting(other, second);
	/* What was recorded in one is now behind work in the other. */
	begin_to_last(second);
	CHECK(cuEventRecord(event, second));
	expect_lasting(event, second);
	CHECK(cuEventRecord(recorded, stream));
	CHECK(cuEventRecord(captured, stream));
	CHECK(cuStreamSynchronize(stream));
	CHECK(cuEventQuery(recorded));
	executable = graph_that_records(context, recorded);
	CHECK(cuGraphLaunch(executable, stream));
	expect_lasting(recorded, stream);
	CHECK(cuGraphExecDestroy(executable));
	executable = capture_that_records(stream, captured);
	CHECK(cuGraphLaunch(executable, stream));
	expect_lasting(captured, stream);
	CHECK(cuGraphExecDestroy(executable));
	/* Nor is it over while it stands in a capture. */
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuEventRecord(event, stream));
	EXPECT(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
	(void)cuStreamEndCapture(stream, &graph);
	EXPECT(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
	CHECK(cuEventDestroy_v2(event));
	return 0;
}
