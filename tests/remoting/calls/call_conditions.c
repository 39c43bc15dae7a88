/* Conditional nodes: which body runs, what a condition is when a launch begins, and what is told of nodes and bodies. */
#include "conditions.h"

/* Bodies add 1, 2, 3, ... to a word. */
static void fill(CUgraph *bodies, unsigned count, CUdeviceptr word)
{
	for (unsigned i = 0; i < count; i++)
		add_add(bodies[i], NULL, word, i + 1);
}

/* What is added when the condition has that value. */
static unsigned added(CUgraphConditionalNodeType type, unsigned size, unsigned value)
{
	CUdeviceptr word = words(1, 0);
	CUgraphConditionalHandle condition;
	CUgraph graph, bodies[3];
	CUgraphExec executable;
	unsigned sum;

	CHECK(cuGraphCreate(&graph, 0));
	condition = condition_of(graph, 0, 0);
	add_conditional(graph, add_choose(graph, NULL, condition, value), condition, type, size, bodies);
	fill(bodies, size, word);
	executable = executable_of(graph);
	run(executable);
	sum = word_at(word);
	CHECK(cuGraphExecDestroy(executable));
	CHECK(cuGraphDestroy(graph));
	CHECK(cuMemFree_v2(word));
	return sum;
}

static void test_choices(void)
{
	REQUIRE_EQUAL(added(CU_GRAPH_COND_TYPE_IF, 1, 0), 0);
	REQUIRE_EQUAL(added(CU_GRAPH_COND_TYPE_IF, 1, 7), 1);
	REQUIRE_EQUAL(added(CU_GRAPH_COND_TYPE_IF, 2, 0), 2);
	REQUIRE_EQUAL(added(CU_GRAPH_COND_TYPE_IF, 2, 7), 1);
	REQUIRE_EQUAL(added(CU_GRAPH_COND_TYPE_SWITCH, 3, 0), 1);
	REQUIRE_EQUAL(added(CU_GRAPH_COND_TYPE_SWITCH, 3, 2), 3);
	REQUIRE_EQUAL(added(CU_GRAPH_COND_TYPE_SWITCH, 3, 3), 0);
	REQUIRE_EQUAL(added(CU_GRAPH_COND_TYPE_SWITCH, 3, ~0u), 0);
	REQUIRE_EQUAL(added(CU_GRAPH_COND_TYPE_SWITCH, 1, 0), 1);
	REQUIRE_EQUAL(added(CU_GRAPH_COND_TYPE_WHILE, 1, 0), 0);
}

/* A body runs in the first launch, and sets the condition to zero: with a default it runs in the next launch, too. */
static void test_defaults(void)
{
	for (unsigned flags = 0; flags <= CU_GRAPH_COND_ASSIGN_DEFAULT; flags++) {
		CUdeviceptr word = words(1, 0);
		CUgraphConditionalHandle condition;
		CUgraph graph, body;
		CUgraphExec executable;

		CHECK(cuGraphCreate(&graph, 0));
		condition = condition_of(graph, 1, flags);
		add_conditional(graph, NULL, condition, CU_GRAPH_COND_TYPE_IF, 1, &body);
		add_choose(body, add_add(body, NULL, word, 1), condition, 0);
		executable = executable_of(graph);
		for (unsigned i = 0; i < 3; i++)
			run(executable);
		/* Without one, what it is at first is not said: from the second launch on it is zero. */
		if (flags)
			REQUIRE_EQUAL(word_at(word), 3);
		else
			REQUIRE(word_at(word) <= 1);
		CHECK(cuGraphExecDestroy(executable));
		CHECK(cuGraphDestroy(graph));
	}
}

/* Two nodes may go by one condition. */
static void test_shared(void)
{
	CUdeviceptr word = words(1, 0);
	CUgraphConditionalHandle condition;
	CUgraph graph, first, second;
	CUgraphNode node;

	CHECK(cuGraphCreate(&graph, 0));
	condition = condition_of(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
	node = add_conditional(graph, NULL, condition, CU_GRAPH_COND_TYPE_IF, 1, &first);
	add_conditional(graph, node, condition, CU_GRAPH_COND_TYPE_SWITCH, 1, &second);
	add_choose(first, add_add(first, NULL, word, 1), condition, 0);
	add_add(second, NULL, word, 10);
	run(executable_of(graph));
	REQUIRE_EQUAL(word_at(word), 11);
}

static void test_told(void)
{
	CUgraphNodeParams params, told = { 0 };
	CUgraphConditionalHandle condition;
	CUgraphNode node, inner, found[2];
	CUgraph graph, *bodies, there;
	CUgraphNodeType type;
	size_t count = 2;
	CUcontext current;

	CHECK(cuCtxGetCurrent(&current));
	CHECK(cuGraphCreate(&graph, 0));
	condition = condition_of(graph, 0, 0);
	params = conditional(condition, CU_GRAPH_COND_TYPE_SWITCH, 3);
	CHECK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
	bodies = params.conditional.phGraph_out;
	REQUIRE(bodies && bodies[0] && bodies[1] && bodies[2] && bodies[0] != bodies[1]);
	REQUIRE_EQUAL(params.conditional.handle, condition);
	REQUIRE_EQUAL(params.conditional.size, 3);
	CHECK(cuGraphNodeGetType(node, &type));
	REQUIRE_EQUAL(type, CU_GRAPH_NODE_TYPE_CONDITIONAL);
	CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE_EQUAL(told.type, CU_GRAPH_NODE_TYPE_CONDITIONAL);
	REQUIRE_EQUAL(told.conditional.handle, condition);
	REQUIRE_EQUAL(told.conditional.type, CU_GRAPH_COND_TYPE_SWITCH);
	REQUIRE_EQUAL(told.conditional.size, 3);
	REQUIRE(told.conditional.ctx == current);
	REQUIRE(!memcmp(told.conditional.phGraph_out, bodies, 3 * sizeof(*bodies)));

	CHECK(cuGraphGetNodes(graph, found, &count));
	REQUIRE(count == 1 && found[0] == node);
	CHECK(cuGraphAddEmptyNode(&inner, bodies[1], NULL, 0));
	count = 2;
	CHECK(cuGraphGetNodes(bodies[1], found, &count));
	REQUIRE(count == 1 && found[0] == inner);
	CHECK(cuGraphNodeGetContainingGraph(inner, &there));
	REQUIRE(there == bodies[1]);
	CHECK(cuGraphDebugDotPrint(graph, "/dev/null", CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));

	/* The array lasts as long as the node, whatever else is asked meanwhile. */
	for (unsigned i = 0; i < 100; i++)
		CHECK(cuGraphNodeGetParams(node, &told));
	REQUIRE(told.conditional.phGraph_out == bodies && bodies[0] != bodies[2]);

	/* Bodies go with their node, and are nobody's to destroy. */
	there = bodies[1];
	EXPECT(cuGraphDestroy(there), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphDestroyNode(node));
	count = 2;
	EXPECT(cuGraphGetNodes(there, found, &count), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuGraphNodeGetType(inner, &type), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuGraphDestroy(graph));
}

int main(void)
{
	begin();
	test_choices();
	test_defaults();
	test_shared();
	test_told();
	return 0;
}
