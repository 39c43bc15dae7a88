/* An update for which there is no memory says so, also in what it tells about itself, and changes nothing. */
#include "graph.h"

static bool memory_is_short;

/* The libraries' too, as a program's functions come before theirs. */
void *calloc(size_t count, size_t bytes)
{
	char *memory = memory_is_short ? NULL : malloc(count * bytes);

	/* Or the compiler would make a call of calloc of it. */
	for (volatile char *at = memory; memory && at < memory + count * bytes; at++)
		*at = 0;
	return memory;
}

static void nothing(void *unused)
{
	(void)unused;
}

int main(void)
{
	CUgraphExecUpdateResultInfo info;
	CUgraphExec executable;
	CUuserObject object;
	CUgraph graph, above;
	CUgraphNode node;
	CUdeviceptr word;

	begin();
	word = new_word(0);
	CHECK(cuGraphCreate(&graph, 0));
	add_store(graph, NULL, word, 7);
	executable = instantiate(graph);
	CHECK(cuUserObjectCreate(&object, NULL, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	CHECK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
	memory_is_short = true;
	EXPECT(cuGraphExecUpdate(executable, graph, &info), CUDA_ERROR_OUT_OF_MEMORY);
	memory_is_short = false;
	REQUIRE_EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_ERROR);
	run(executable, NULL);
	REQUIRE_EQUAL(word_at(word), 7);
	CHECK(cuGraphExecUpdate(executable, graph, &info));
	REQUIRE_EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
	CHECK(cuGraphCreate(&above, 0));
	CHECK(cuGraphAddChildGraphNode(&node, above, NULL, 0, graph));
	executable = instantiate(above);
	memory_is_short = true;
	EXPECT(cuGraphExecChildGraphNodeSetParams(executable, node, graph), CUDA_ERROR_OUT_OF_MEMORY);
	memory_is_short = false;
	CHECK(cuGraphExecChildGraphNodeSetParams(executable, node, graph));
	EXPECT(cuGraphExecChildGraphNodeSetParams(executable, node, above), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
