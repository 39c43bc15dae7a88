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
	return 0;
}
