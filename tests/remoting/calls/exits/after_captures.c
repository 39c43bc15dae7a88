/* Threads that ask what a capture is behind, and end: nothing is left of what they were told. */
#include "../calls.h"

#include <malloc.h>
#include <pthread.h>

#define THREADS 500
#define NODES 100

static CUstream stream;

static void *ask(void *unused)
{
	const CUgraphNode *nodes;
	CUstreamCaptureStatus status;
	size_t count = 0;

	(void)unused;
	CHECK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &nodes, &count));
	REQUIRE_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	REQUIRE_EQUAL(count, NODES);
	return NULL;
}

static void asked(void)
{
	pthread_t thread;

	REQUIRE(pthread_create(&thread, NULL, ask, NULL) == 0);
	REQUIRE(pthread_join(thread, NULL) == 0);
}

int main(void)
{
	CUgraphNode nodes[NODES];
	CUstreamCaptureStatus status;
	CUgraph graph;
	size_t before;

	/* All threads' memory is counted. */
	REQUIRE(mallopt(M_ARENA_MAX, 1) == 1);
	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL));
	for (int i = 0; i < NODES; i++)
		CHECK(cuGraphAddEmptyNode(&nodes[i], graph, NULL, 0));
	CHECK(cuStreamUpdateCaptureDependencies(stream, nodes, NODES, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
	asked();
	before = mallinfo2().uordblks;
	for (int i = 0; i < THREADS; i++)
		asked();
	REQUIRE(mallinfo2().uordblks < before + THREADS * NODES);
	CHECK(cuStreamEndCapture(stream, &graph));
	puts("ok");
	return 0;
}
