/* Copy nodes that name memory of this process, in graphs that are destroyed, or destroyed themselves: nothing is left
 * of them. */
#include "../calls.h"

#include <malloc.h>

#define GRAPHS 2000

static void node(CUdeviceptr device, const unsigned *word, bool alone)
{
	const CUDA_MEMCPY3D copy = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = word,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = device,
		.WidthInBytes = sizeof(*word),
		.Height = 1,
		.Depth = 1,
	};
	CUgraphNodeType type;
	CUgraphNode made;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphAddMemcpyNode(&made, graph, NULL, 0, &copy, NULL));
	CHECK(cuGraphNodeGetType(made, &type));
	REQUIRE_EQUAL(type, CU_GRAPH_NODE_TYPE_MEMCPY);
	if (alone)
		CHECK(cuGraphDestroyNode(made));
	CHECK(cuGraphDestroy(graph));
}

int main(void)
{
	static unsigned word;
	CUdeviceptr device;
	size_t before;

	begin();
	device = words(1, 0);
	node(device, &word, false);
	node(device, &word, true);
	before = mallinfo2().uordblks;
	for (int i = 0; i < GRAPHS; i++)
		node(device, &word, i % 2);
	/* A node was kept with some 250 bytes, and tables grow.  What its graph asked this process for goes when the server
	 * says so. */
	while (mallinfo2().uordblks > before + GRAPHS * 100)
		CHECK(cuCtxSynchronize());
	puts("ok");
	return 0;
}
