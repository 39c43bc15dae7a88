/* Loops in graphs: they run to their ends without the program, in each other, with bodies that were captured, again and
 * again, and changed. */
#include "conditions.h"

#define LAUNCHES 50

/* A loop that adds to a word and counts another one down. */
struct loop {
	CUgraph graph, body;
	CUgraphConditionalHandle condition;
	CUgraphNode addition;
};

static struct loop loop_of(CUdeviceptr left, CUdeviceptr sum, unsigned value)
{
	struct loop loop;

	CHECK(cuGraphCreate(&loop.graph, 0));
	loop.condition = condition_of(loop.graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
	add_conditional(loop.graph, NULL, loop.condition, CU_GRAPH_COND_TYPE_WHILE, 1, &loop.body);
	loop.addition = add_add(loop.body, NULL, sum, value);
	add_kernel(loop.body, loop.addition, "count_down", &loop.condition, &left);
	return loop;
}

/* Launches in a row, each of which counts from five down. */
static void test_launched_again(void)
{
	CUdeviceptr left = words(1, 0), sum = words(1, 0);
	struct loop loop = loop_of(left, sum, 3);
	CUgraphExec executable = executable_of(loop.graph);

	for (unsigned i = 0; i < LAUNCHES; i++) {
		CHECK(cuMemsetD32Async(left, 5, 1, NULL));
		CHECK(cuGraphLaunch(executable, NULL));
	}
	REQUIRE_EQUAL(word_at(sum), LAUNCHES * 5 * 3);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(loop.graph));
}

/* Four times three, the inner count being set anew by a fill and the inner condition by a kernel. */
static void test_nested(void)
{
	CUdeviceptr outer_left = words(1, 4), inner_left = words(1, 0), sum = words(1, 0);
	const CUDA_MEMSET_NODE_PARAMS three = { inner_left, 0, 3, 4, 1, 1 };
	CUgraphConditionalHandle outer, inner;
	CUgraph graph, body, inside;
	CUgraphNode fill, node;

	CHECK(cuGraphCreate(&graph, 0));
	outer = condition_of(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
	add_conditional(graph, NULL, outer, CU_GRAPH_COND_TYPE_WHILE, 1, &body);
	inner = condition_of(body, 0, 0);
	CHECK(cuGraphAddMemsetNode(&fill, body, NULL, 0, &three, NULL));
	node = add_choose(body, fill, inner, 1);
	node = add_conditional(body, node, inner, CU_GRAPH_COND_TYPE_WHILE, 1, &inside);
	add_kernel(inside, add_add(inside, NULL, sum, 1), "count_down", &inner, &inner_left);
	add_kernel(body, node, "count_down", &outer, &outer_left);
	run(executable_of(graph));
	REQUIRE_EQUAL(word_at(sum), 12);
	REQUIRE_EQUAL(word_at(outer_left), 0);
}

/* As libraries do it: the node is put into a capture, and its body is captured from another stream.  A copy and a graph
 * are in it, too. */
static void test_captured(void)
{
	CUdeviceptr left = words(1, 6), sum = words(1, 0), last = words(1, 0);
	const CUgraphNode *behind;
	CUgraphConditionalHandle loop;
	CUstreamCaptureStatus status;
	CUstream stream, side;
	CUgraph graph, body, child, same;
	CUgraphExec executable;
	CUgraphNodeParams params;
	CUgraphNode node;
	unsigned two = 2;
	cuuint64_t id;
	size_t count;

	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
	CHECK(cuGraphCreate(&child, 0));
	add_add(child, NULL, sum, 100);

	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuMemsetD32Async(last, 1, 1, stream));
	CHECK(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &behind, &count));
	loop = condition_of(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
	params = conditional(loop, CU_GRAPH_COND_TYPE_WHILE, 1);
	CHECK(cuGraphAddNode_v2(&node, graph, behind, NULL, count, &params));
	CHECK(cuStreamUpdateCaptureDependencies(stream, &node, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
	body = params.conditional.phGraph_out[0];

	CHECK(cuStreamBeginCaptureToGraph(side, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(cuGraphDestroyNode(node), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuLaunchKernel(setter("add"), 1, 1, 1, 1, 1, 1, 0, side, (void *[]){ &sum, &two }, NULL));
	CHECK(cuLaunchKernel(setter("count_down"), 1, 1, 1, 1, 1, 1, 0, side, (void *[]){ &loop, &left }, NULL));
	CHECK(cuMemcpyDtoDAsync_v2(last, sum, 4, side));
	executable = executable_of(child);
	CHECK(cuGraphLaunch(executable, side));
	CHECK(cuStreamEndCapture(side, NULL));
	CHECK(cuStreamEndCapture(stream, &same));
	REQUIRE(same == graph);

	CHECK(cuGraphLaunch(executable_of(graph), stream));
	CHECK(cuStreamSynchronize(stream));
	REQUIRE_EQUAL(word_at(sum), 6 * 102);
	REQUIRE_EQUAL(word_at(last), 6 * 102 - 100);
	REQUIRE_EQUAL(word_at(left), 0);
}

/* Parameters of a node in a body, by its name and by another graph of the same shape, whose own condition then counts. */
static void test_changed(void)
{
	CUdeviceptr left = words(1, 2), sum = words(1, 0), other_left = words(1, 3), other_sum = words(1, 0);
	struct loop loop = loop_of(left, sum, 1), other = loop_of(other_left, other_sum, 5);
	CUgraphExec executable = executable_of(loop.graph);
	CUgraphExecUpdateResultInfo info;
	CUgraph different, bodies[2];
	unsigned ten = 10;
	CUDA_KERNEL_NODE_PARAMS params = one_thread(setter("add"), (void *[]){ &sum, &ten });

	CHECK(cuGraphExecKernelNodeSetParams_v2(executable, loop.addition, &params));
	run(executable);
	REQUIRE_EQUAL(word_at(sum), 20);
	CHECK(cuGraphExecUpdate_v2(executable, other.graph, &info));
	CHECK(cuGraphDestroy(other.graph));
	run(executable);
	REQUIRE_EQUAL(word_at(other_sum), 15);
	REQUIRE_EQUAL(word_at(sum), 20);

	/* Another kind of node, or another number of bodies, is another graph. */
	CHECK(cuGraphCreate(&different, 0));
	add_conditional(different, NULL, condition_of(different, 1, 0), CU_GRAPH_COND_TYPE_IF, 2, bodies);
	EXPECT(cuGraphExecUpdate_v2(executable, different, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	REQUIRE_EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
}

int main(void)
{
	begin();
	test_launched_again();
	test_nested();
	test_captured();
	test_changed();
	return 0;
}
