/* A user object is destroyed once, when the program, its graphs, their clones and executables have all let
 * go of it; its destructor may not call CUDA. */
#include "graph.h"

static sem_t destroyed;
static CUresult inside;

static void destroy(void *argument)
{
	CUgraph graph;

	++*(int *)argument;
	inside = cuGraphCreate(&graph, 0);
	sem_post(&destroyed);
}

/* The executable keeps what the graph that it was updated with keeps, and no longer what it kept before. */
static void test_update(void)
{
	CUgraphExecUpdateResultInfo info;
	CUgraphExec executable;
	CUuserObject objects[2];
	CUgraph graphs[2];
	int counts[2] = { 0, 0 };

	for (int i = 0; i < 2; i++) {
		CHECK(cuGraphCreate(&graphs[i], 0));
		CHECK(cuUserObjectCreate(&objects[i], &counts[i], destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
		CHECK(cuGraphRetainUserObject(graphs[i], objects[i], 1, CU_GRAPH_USER_OBJECT_MOVE));
	}
	executable = instantiate(graphs[0]);
	CHECK(cuGraphDestroy(graphs[0]));
	run(executable, NULL);
	CHECK(cuGraphExecUpdate_v2(executable, graphs[1], &info));
	CHECK(cuGraphDestroy(graphs[1]));
	sem_wait(&destroyed);
	REQUIRE_EQUAL(counts[0], 1);
	REQUIRE_EQUAL(counts[1], 0);
	run(executable, NULL);
	CHECK(cuGraphExecDestroy(executable));
	sem_wait(&destroyed);
	REQUIRE_EQUAL(counts[1], 1);
}

#define ROUNDS 50000
#define OBJECTS 32

/* A child that can't be added, as there is no graph for it: its copy lets go of what the child keeps. */
static void *add_in_vain(void *child)
{
	CUgraphNode node;

	for (int i = 0; i < ROUNDS; i++)
		EXPECT(cuGraphAddChildGraphNode(&node, NULL, NULL, 0, child), CUDA_ERROR_INVALID_VALUE);
	return NULL;
}

static void test_threads(void)
{
	CUuserObject objects[OBJECTS];
	pthread_t threads[2];
	CUgraph child;
	int count = 0;

	CHECK(cuGraphCreate(&child, 0));
	for (int i = 0; i < OBJECTS; i++) {
		CHECK(cuUserObjectCreate(&objects[i], &count, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
		CHECK(cuGraphRetainUserObject(child, objects[i], 1, 0));
	}
	for (int i = 0; i < 2; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, add_in_vain, child));
	for (int i = 0; i < 2; i++)
		REQUIRE(!pthread_join(threads[i], NULL));
	CHECK(cuGraphDestroy(child));
	for (int i = 0; i < OBJECTS; i++) {
		EXPECT(cuUserObjectRelease(objects[i], 2), CUDA_ERROR_INVALID_VALUE);
		CHECK(cuUserObjectRelease(objects[i], 1));
		sem_wait(&destroyed);
	}
	REQUIRE_EQUAL(count, OBJECTS);
}

int main(void)
{
	CUgraphExec executable;
	CUgraph graph, clone;
	CUuserObject object;
	int count = 0;

	begin();
	sem_init(&destroyed, 0, 0);
	CHECK(cuGraphCreate(&graph, 0));
	EXPECT(cuUserObjectCreate(&object, &count, destroy, 1, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuUserObjectCreate(&object, &count, destroy, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	CHECK(cuUserObjectRetain(object, 1));
	CHECK(cuUserObjectRelease(object, 2));
	CHECK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
	CHECK(cuGraphRetainUserObject(graph, object, 2, 0));
	CHECK(cuGraphReleaseUserObject(graph, object, 2));
	EXPECT(cuGraphReleaseUserObject(graph, object, 2), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphClone(&clone, graph));
	executable = instantiate(graph);
	CHECK(cuGraphDestroy(graph));
	CHECK(cuGraphDestroy(clone));
	CHECK(cuUserObjectRetain(object, 1));
	CHECK(cuUserObjectRelease(object, 1));
	REQUIRE_EQUAL(count, 0);
	run(executable, NULL);
	CHECK(cuGraphExecDestroy(executable));
	sem_wait(&destroyed);
	REQUIRE_EQUAL(count, 1);
	REQUIRE_EQUAL(inside, CUDA_ERROR_NOT_PERMITTED);
	EXPECT(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE);
	test_update();
	test_threads();
	return 0;
}
