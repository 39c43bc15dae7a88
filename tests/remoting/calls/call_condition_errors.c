/* What conditional nodes can't be, what bodies can't have, and what graphs with such nodes can't be used for. */
#include "conditions.h"

static CUcontext context;

static void nothing(void *unused)
{
	(void)unused;
}

static void test_handles(void)
{
	CUgraphConditionalHandle condition;
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	EXPECT(cuGraphConditionalHandleCreate(NULL, graph, NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphConditionalHandleCreate(&condition, graph, NULL, 0, 2), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphConditionalHandleCreate(&condition, NULL, NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphDestroy(graph));
	EXPECT(cuGraphConditionalHandleCreate(&condition, graph, NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

static void expect_refused(CUgraph graph, CUgraphConditionalHandle condition, int type, unsigned size,
			   CUcontext wanted, CUresult expected)
{
	CUgraphNodeParams params = conditional(condition, (CUgraphConditionalNodeType)type, size);
	CUgraphNode node;
	size_t count;

	params.conditional.ctx = wanted;
	EXPECT(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params), expected);
	CHECK(cuGraphGetNodes(graph, NULL, &count));
	REQUIRE_EQUAL(count, 0);
}

static void test_nodes(void)
{
	CUgraphConditionalHandle condition, foreign, gone;
	CUgraph graph, other, third;
	CUcontext second;

	CHECK(cuGraphCreate(&graph, 0));
	CHECK(cuGraphCreate(&other, 0));
	CHECK(cuGraphCreate(&third, 0));
	condition = condition_of(graph, 0, 0);
	foreign = condition_of(other, 0, 0);
	gone = condition_of(third, 0, 0);
	CHECK(cuGraphDestroy(third));
	CHECK(cuCtxCreate_v2(&second, 0, 0));
	CHECK(cuCtxSetCurrent(context));
	expect_refused(graph, condition, CU_GRAPH_COND_TYPE_IF, 0, NULL, CUDA_ERROR_INVALID_VALUE);
	expect_refused(graph, condition, CU_GRAPH_COND_TYPE_IF, 3, NULL, CUDA_ERROR_INVALID_VALUE);
	expect_refused(graph, condition, CU_GRAPH_COND_TYPE_WHILE, 2, NULL, CUDA_ERROR_INVALID_VALUE);
	expect_refused(graph, condition, CU_GRAPH_COND_TYPE_SWITCH, 0, NULL, CUDA_ERROR_INVALID_VALUE);
	expect_refused(graph, condition, 3, 1, NULL, CUDA_ERROR_INVALID_VALUE);
	expect_refused(graph, condition, -1, 1, NULL, CUDA_ERROR_INVALID_VALUE);
	expect_refused(graph, condition, CU_GRAPH_COND_TYPE_SWITCH, ~0u, NULL, CUDA_ERROR_OUT_OF_MEMORY);
	expect_refused(graph, foreign, CU_GRAPH_COND_TYPE_IF, 1, NULL, CUDA_ERROR_INVALID_VALUE);
	expect_refused(graph, gone, CU_GRAPH_COND_TYPE_IF, 1, NULL, CUDA_ERROR_INVALID_VALUE);
	expect_refused(graph, 0, CU_GRAPH_COND_TYPE_IF, 1, NULL, CUDA_ERROR_INVALID_VALUE);
	expect_refused(graph, 0x1234567890, CU_GRAPH_COND_TYPE_IF, 1, NULL, CUDA_ERROR_INVALID_VALUE);
	expect_refused(graph, condition, CU_GRAPH_COND_TYPE_IF, 1, second, CUDA_ERROR_INVALID_VALUE);
	CHECK(cuCtxDestroy_v2(second));
	CHECK(cuCtxSetCurrent(context));
}

/* A graph with one conditional node of one body. */
static CUgraph with_body(CUgraph *body)
{
	CUgraph graph;

	CHECK(cuGraphCreate(&graph, 0));
	add_conditional(graph, NULL, condition_of(graph, 0, 0), CU_GRAPH_COND_TYPE_IF, 1, body);
	return graph;
}

static void expect_unfit(CUgraph graph, CUgraphNode node)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS params = { 0 };
	CUgraphExec executable;

	EXPECT(cuGraphInstantiateWithParams(&executable, graph, &params), CUDA_ERROR_INVALID_VALUE);
	REQUIRE(params.hErrNode_out == node);
	REQUIRE_EQUAL(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
}

/* They may be added, as NVIDIA's driver lets them be, but no executable is made. */
static void test_bodies(void)
{
	const CUDA_HOST_NODE_PARAMS host = { .fn = nothing };
	CUgraph graph, body, child, inner;
	CUgraphExec executable;
	CUgraphNode node;
	CUevent event;

	graph = with_body(&body);
	CHECK(cuGraphAddHostNode(&node, body, NULL, 0, &host));
	expect_unfit(graph, node);
	CHECK(cuGraphDestroyNode(node));
	CHECK(cuEventCreate(&event, 0));
	CHECK(cuGraphAddEventRecordNode(&node, body, NULL, 0, event));
	expect_unfit(graph, node);
	CHECK(cuGraphDestroyNode(node));

	/* In a graph within it, too, and in a body within it. */
	CHECK(cuGraphCreate(&child, 0));
	CHECK(cuGraphAddHostNode(&node, child, NULL, 0, &host));
	CHECK(cuGraphAddChildGraphNode(&node, body, NULL, 0, child));
	EXPECT(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphDestroyNode(node));
	add_conditional(body, NULL, condition_of(graph, 0, 0), CU_GRAPH_COND_TYPE_WHILE, 1, &inner);
	CHECK(cuGraphAddHostNode(&node, inner, NULL, 0, &host));
	expect_unfit(graph, node);
	CHECK(cuGraphDestroyNode(node));
	executable = executable_of(graph);
	run(executable);
	CHECK(cuGraphExecDestroy(executable));
}

/* Kernels of another context than the node's are none for its body, and can't set its condition. */
static void test_contexts(void)
{
	CUgraphConditionalHandle condition;
	CUdeviceptr word;
	CUcontext second;
	CUgraph graph, body;
	CUmodule module;
	CUfunction function;
	CUgraphNode node;
	unsigned one = 1;

	graph = with_body(&body);
	CHECK(cuCtxCreate_v2(&second, 0, 0));
	CHECK(cuModuleLoadData(&module, setters));
	CHECK(cuModuleGetFunction(&function, module, "add"));
	word = words(1, 0);
	{
		CUDA_KERNEL_NODE_PARAMS params = one_thread(function, (void *[]){ &word, &one });

		CHECK(cuGraphAddKernelNode_v2(&node, body, NULL, 0, &params));
	}
	CHECK(cuCtxSetCurrent(context));
	expect_unfit(graph, node);
	condition = condition_of(graph, 0, 0);
	CHECK(cuCtxSetCurrent(second));
	CHECK(cuModuleGetFunction(&function, module, "choose"));
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){ &condition, &one }, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuCtxDestroy_v2(second));
}

static void test_uses(void)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS told = { 0 };
	CUgraph graph, body, clone, outside;
	CUgraphNodeParams params;
	CUgraphExec executable, second;
	CUgraphNode node, other;
	CUstream stream;
	size_t count = 1;

	graph = with_body(&body);
	CHECK(cuGraphGetNodes(graph, &node, &count));
	EXPECT(cuGraphClone(&clone, graph), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuGraphCreate(&outside, 0));
	EXPECT(cuGraphAddChildGraphNode(&other, outside, NULL, 0, graph), CUDA_ERROR_NOT_SUPPORTED);
	params = (CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_GRAPH };
	params.graph.graph = graph;
	params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
	EXPECT(cuGraphAddNode_v2(&other, outside, NULL, NULL, 0, &params), CUDA_ERROR_NOT_SUPPORTED);

	/* One executable at a time, no launch in a capture, and the node stays what it is. */
	executable = executable_of(graph);
	EXPECT(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(cuGraphLaunch(executable, stream), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuStreamEndCapture(stream, &clone));
	params = conditional(condition_of(graph, 0, 0), CU_GRAPH_COND_TYPE_IF, 1);
	EXPECT(cuGraphNodeSetParams(node, &params), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuGraphExecNodeSetParams(executable, node, &params), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(cuGraphExecDestroy(executable));

	/* That handle is of no node. */
	EXPECT(cuGraphInstantiateWithParams(&executable, graph, &told), CUDA_ERROR_INVALID_VALUE);
	REQUIRE_EQUAL(told.result_out, CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED);
}

/* A kernel of a body whose code has gone refuses the launch, whichever body would run. */
static void test_unloaded(void)
{
	CUdeviceptr word = words(1, 0);
	CUgraph graph, body;
	CUgraphExec executable;
	CUfunction function;
	CUmodule module;
	CUgraphNode node;
	unsigned one = 1;

	graph = with_body(&body);
	CHECK(cuModuleLoadData(&module, setters));
	CHECK(cuModuleGetFunction(&function, module, "add"));
	{
		CUDA_KERNEL_NODE_PARAMS params = one_thread(function, (void *[]){ &word, &one });

		CHECK(cuGraphAddKernelNode_v2(&node, body, NULL, 0, &params));
	}
	executable = executable_of(graph);
	run(executable);
	CHECK(cuModuleUnload(module));
	EXPECT(cuGraphLaunch(executable, NULL), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE_EQUAL(word_at(word), 0);
}

/* A kernel that sets what is no condition ends its context. */
static void test_kernel(void)
{
	CUgraphConditionalHandle condition = 0x1230;
	unsigned value = 1;

	CHECK(cuLaunchKernel(setter("choose"), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){ &condition, &value }, NULL));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
}

int main(void)
{
	context = begin();
	test_handles();
	test_nodes();
	test_bodies();
	test_contexts();
	test_uses();
	test_unloaded();
	test_kernel();
	return 0;
}
