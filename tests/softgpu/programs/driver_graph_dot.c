/* The graph as text: every node with its type, every edge, child graphs as clusters. */
#include "graph.h"

static char *slurp(const char *path)
{
	static char text[1 << 16];
	FILE *file = fopen(path, "r");
	size_t length;

	REQUIRE(file);
	length = fread(text, 1, sizeof text - 1, file);
	text[length] = '\0';
	fclose(file);
	return text;
}

int main(void)
{
	char path[] = "/tmp/farbus-graph-XXXXXX", *text;
	CUgraphNode store, child;
	CUgraph graph, inner;
	int file;

	begin();
	file = mkstemp(path);
	REQUIRE(file >= 0);
	close(file);
	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphCreate(&inner, 0));
	CHECK(cuGraphAddEmptyNode(&store, inner, NULL, 0));
	store = add_store(graph, NULL, new_word(0), 1);
	CHECK(cuGraphAddChildGraphNode(&child, graph, &store, 1, inner));
	CHECK(cuGraphDebugDotPrint(graph, path, CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
	text = slurp(path);
	unlink(path);
	REQUIRE(!strncmp(text, "digraph", 7));
	REQUIRE(strstr(text, "KERNEL\\nstore\\n<<<(1,1,1),(1,1,1),0>>>"));
	REQUIRE(strstr(text, "GRAPH") && strstr(text, "EMPTY") && strstr(text, " -> "));
	EXPECT(cuGraphDebugDotPrint(graph, "/nowhere/graph.dot", 0), CUDA_ERROR_OPERATING_SYSTEM);
	return 0;
}
