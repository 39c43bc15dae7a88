/* conditions.h - kernels that set conditions, and short forms of nodes. */
#ifndef FARBUS_TESTS_REMOTING_CONDITIONS_H
#define FARBUS_TESTS_REMOTING_CONDITIONS_H

#include "calls.h"

/* choose(condition, value): set it
 * count_down(condition, address): take one from a u32, and set the condition to what is left
 * add(address, value): add to a u32 */
static const char setters[] =
".version 8.3\n"
".target sm_75\n"
".address_size 64\n"
".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
".visible .entry choose(.param .u64 ph, .param .u32 pv)\n"
"{\n"
"	.reg .b32 %r<2>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [ph];\n"
"	ld.param.u32 %r1, [pv];\n"
"	{\n"
"	.param .b64 a;\n"
"	.param .b32 b;\n"
"	st.param.b64 [a], %rd1;\n"
"	st.param.b32 [b], %r1;\n"
"	call.uni cudaGraphSetConditional, (a, b);\n"
"	}\n"
"	ret;\n"
"}\n"
".visible .entry count_down(.param .u64 ph, .param .u64 pa)\n"
"{\n"
"	.reg .b32 %r<3>;\n"
"	.reg .b64 %rd<3>;\n"
"	ld.param.u64 %rd1, [ph];\n"
"	ld.param.u64 %rd2, [pa];\n"
"	ld.global.u32 %r1, [%rd2];\n"
"	sub.u32 %r2, %r1, 1;\n"
"	st.global.u32 [%rd2], %r2;\n"
"	{\n"
"	.param .b64 a;\n"
"	.param .b32 b;\n"
"	st.param.b64 [a], %rd1;\n"
"	st.param.b32 [b], %r2;\n"
"	call.uni cudaGraphSetConditional, (a, b);\n"
"	}\n"
"	ret;\n"
"}\n"
".visible .entry add(.param .u64 pa, .param .u32 pv)\n"
"{\n"
"	.reg .b32 %r<4>;\n"
"	.reg .b64 %rd<2>;\n"
"	ld.param.u64 %rd1, [pa];\n"
"	ld.param.u32 %r1, [pv];\n"
"	ld.global.u32 %r2, [%rd1];\n"
"	add.u32 %r3, %r2, %r1;\n"
"	st.global.u32 [%rd1], %r3;\n"
"	ret;\n"
"}\n";

static inline CUfunction setter(const char *name)
{
	static CUmodule module;
	CUfunction function;

	if (!module)
		CHECK(cuModuleLoadData(&module, setters));
	CHECK(cuModuleGetFunction(&function, module, name));
	return function;
}

static inline CUDA_KERNEL_NODE_PARAMS one_thread(CUfunction function, void **params)
{
	return (CUDA_KERNEL_NODE_PARAMS){
		.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
		.blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .kernelParams = params,
	};
}

/* A kernel of two parameters behind a node, or behind none. */
static inline CUgraphNode add_kernel(CUgraph graph, CUgraphNode after, const char *name, void *first,
				     void *second)
{
	const CUDA_KERNEL_NODE_PARAMS params = one_thread(setter(name), (void *[]){ first, second });
	CUgraphNode node;

	CHECK(cuGraphAddKernelNode_v2(&node, graph, &after, after != NULL, &params));
	return node;
}

static inline CUgraphNode add_choose(CUgraph graph, CUgraphNode after, CUgraphConditionalHandle condition,
				     unsigned value)
{
	return add_kernel(graph, after, "choose", &condition, &value);
}

static inline CUgraphNode add_add(CUgraph graph, CUgraphNode after, CUdeviceptr address, unsigned value)
{
	return add_kernel(graph, after, "add", &address, &value);
}

static inline CUgraphNodeParams conditional(CUgraphConditionalHandle condition, CUgraphConditionalNodeType type,
					    unsigned size)
{
	CUgraphNodeParams params = { .type = CU_GRAPH_NODE_TYPE_CONDITIONAL };

	params.conditional.handle = condition;
	params.conditional.type = type;
	params.conditional.size = size;
	return params;
}

static inline CUgraphNode add_conditional(CUgraph graph, CUgraphNode after, CUgraphConditionalHandle condition,
					  CUgraphConditionalNodeType type, unsigned size, CUgraph *bodies)
{
	CUgraphNodeParams params = conditional(condition, type, size);
	CUgraphNode node;

	CHECK(cuGraphAddNode_v2(&node, graph, &after, NULL, after != NULL, &params));
	for (unsigned i = 0; i < size; i++)
		bodies[i] = params.conditional.phGraph_out[i];
	return node;
}

static inline CUgraphConditionalHandle condition_of(CUgraph graph, unsigned value, unsigned flags)
{
	CUgraphConditionalHandle condition;

	CHECK(cuGraphConditionalHandleCreate(&condition, graph, NULL, value, flags));
	return condition;
}

static inline CUgraphExec executable_of(CUgraph graph)
{
	CUgraphExec executable;

	CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	return executable;
}

static inline void run(CUgraphExec executable)
{
	CHECK(cuGraphLaunch(executable, NULL));
	CHECK(cuStreamSynchronize(NULL));
}

#endif
