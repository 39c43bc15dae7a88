/* A graph of every common type of node, built by hand, runs in the order of its edges; its parameters
 * can be asked for; later launches see later contents of host memory. */
#include "graph.h"

static int called;

static void on_host(void *argument)
{
	called = *(int *)argument;
}

int main(void)
{
	CUgraphNode fill, store, copy, out, host, empty, nodes[8];
	CUDA_KERNEL_NODE_PARAMS kernel_params;
	CUDA_MEMSET_NODE_PARAMS fill_params, fill_found;
	CUDA_MEMCPY3D copy_params, copy_found;
	CUDA_HOST_NODE_PARAMS host_params, host_found;
	CUdeviceptr a, b;
	CUgraphNodeType type;
	CUgraphExec executable;
	CUstream stream;
	CUgraph graph;
	unsigned seen = 0;
	int argument = 5;
	size_t count = 8;

	begin();
	a = new_word(0);
	b = new_word(0);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuGraphCreate(&graph, 0));
	EXPECT(cuGraphCreate(&graph, 1), CUDA_ERROR_INVALID_VALUE);

	/* a = 7 everywhere; a = 8; b = a; seen = b */
	fill_params = fill_word(a, 7);
	CHECK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &fill_params, NULL));
	store = add_store(graph, fill, a, 8);
	copy_params = copy_word(b, a);
	CHECK(cuGraphAddMemcpyNode(&copy, graph, &store, 1, &copy_params, NULL));
	copy_params = (CUDA_MEMCPY3D){
		.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = b,
		.dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = &seen,
		.WidthInBytes = 4, .Height = 1, .Depth = 1,
	};
	CHECK(cuGraphAddEmptyNode(&empty, graph, &copy, 1));
	CHECK(cuGraphAddMemcpyNode(&out, graph, &empty, 1, &copy_params, NULL));
	host_params = (CUDA_HOST_NODE_PARAMS){ on_host, &argument };
	CHECK(cuGraphAddHostNode(&host, graph, &out, 1, &host_params));

	memset(nodes, 0xff, sizeof nodes);
	CHECK(cuGraphGetNodes(graph, nodes, &count));
	REQUIRE_EQUAL(count, 6);
	REQUIRE(nodes[0] == fill && nodes[5] == host && !nodes[6] && !nodes[7]);
	CHECK(cuGraphNodeGetType(empty, &type));
	REQUIRE_EQUAL(type, CU_GRAPH_NODE_TYPE_EMPTY);
	CHECK(cuGraphMemsetNodeGetParams(fill, &fill_found));
	REQUIRE(!memcmp(&fill_found, &fill_params, sizeof fill_found));
	CHECK(cuGraphMemcpyNodeGetParams(out, &copy_found));
	REQUIRE(copy_found.dstHost == &seen && copy_found.srcDevice == b);
	CHECK(cuGraphHostNodeGetParams(host, &host_found));
	REQUIRE(host_found.fn == on_host && host_found.userData == &argument);
	CHECK(cuGraphKernelNodeGetParams(store, &kernel_params));
	REQUIRE(kernel_params.func == kernel("store"));
	REQUIRE_EQUAL(*(CUdeviceptr *)kernel_params.kernelParams[0], a);
	REQUIRE_EQUAL(*(unsigned *)kernel_params.kernelParams[1], 8);
	EXPECT(cuGraphMemsetNodeGetParams(store, &fill_found), CUDA_ERROR_INVALID_VALUE);

	executable = instantiate(graph);
	REQUIRE_EQUAL(word_at(a), 0);
	run(executable, stream);
	REQUIRE_EQUAL(seen, 8);
	REQUIRE_EQUAL(called, 5);

	/* The executable lives on without the graph, and runs again. */
	CHECK(cuGraphDestroy(graph));
	EXPECT(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphNodeGetType(fill, &type), CUDA_ERROR_INVALID_VALUE);
	seen = 0;
	argument = 6;
	run(executable, stream);
	REQUIRE_EQUAL(seen, 8);
	REQUIRE_EQUAL(called, 6);
	CHECK(cuGraphExecDestroy(executable));
	EXPECT(cuGraphLaunch(executable, stream), CUDA_ERROR_INVALID_VALUE);
	return 0;
}
