/* A function of the program's that ends the thread which it is called on ends nothing else: what comes behind it in
 * its stream, or in its graph, is done, by as many threads as it takes. */
#include "graph.h"

#define TIMES 100

static CUdeviceptr word;
static int called;
static sem_t destroyed;

static void leave(void *argument)
{
	(void)argument;
	called++;
	pthread_exit(NULL);
}

static void leave_back(CUstream stream, CUresult status, void *argument)
{
	(void)stream;
	REQUIRE_EQUAL(status, CUDA_SUCCESS);
	leave(argument);
}

static void leave_destroyed(void *argument)
{
	(void)argument;
	sem_post(&destroyed);
	pthread_exit(NULL);
}

/* Host functions with a store behind each, and twice one behind the other. */
static void test_graph(CUstream stream)
{
	const CUDA_HOST_NODE_PARAMS host = { .fn = leave };
	CUgraphNode first, second, third;
	CUgraphExec executable;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddHostNode(&first, graph, NULL, 0, &host));
	second = add_store(graph, first, word, 1);
	CHECK(cuGraphAddHostNode(&third, graph, &second, 1, &host));
	CHECK(cuGraphAddHostNode(&first, graph, &third, 1, &host));
	add_store(graph, first, word, 9);
	executable = instantiate(graph);
	for (int i = 1; i <= TIMES; i++) {
		called = 0;
		CHECK(cuMemsetD32Async(word, 0, 1, stream));
		run(executable, stream);
		REQUIRE_EQUAL(called, 3);
		REQUIRE_EQUAL(word_at(word), 9);
	}
}

static void test_destructors(void)
{
	CUuserObject object;

	sem_init(&destroyed, 0, 0);
	for (int i = 0; i < TIMES; i++) {
		CHECK(cuUserObjectCreate(&object, NULL, leave_destroyed, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
		CHECK(cuUserObjectRelease(object, 1));
		sem_wait(&destroyed);
	}
}

int main(void)
{
	CUstream stream;

	begin();
	word = new_word(0);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < TIMES; i++) {
		CHECK(cuLaunchHostFunc(stream, leave, NULL));
		CHECK(cuStreamAddCallback(stream, leave_back, NULL, 0));
		CHECK(launch_store(kernel("store"), word, (unsigned)i, stream));
	}
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(called, 2 * TIMES);
	REQUIRE_EQUAL(word_at(word), TIMES - 1);
	/* Destroyed with such functions before it. */
	CHECK(cuLaunchHostFunc(stream, leave, NULL));
	CHECK(launch_store(kernel("store"), word, TIMES, stream));
	CHECK(cuStreamDestroy(stream));
	CHECK(cuCtxSynchronize());
	REQUIRE_EQUAL(word_at(word), TIMES);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	test_graph(stream);
	test_destructors();
	return 0;
}
