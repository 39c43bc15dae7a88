/* cuGraphDebugDotPrint: the graph as text for Graphviz. */
#include "../driver/graph/graph.h"

#include "../driver/graph/memory.h"
#include "../driver/launch.h"
#include "../driver/module.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define VERBOSE CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE

static const char *const type_names[] = {
	[CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL", [CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
	[CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET", [CU_GRAPH_NODE_TYPE_HOST] = "HOST",
	[CU_GRAPH_NODE_TYPE_GRAPH] = "GRAPH", [CU_GRAPH_NODE_TYPE_EMPTY] = "EMPTY",
	[CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "EVENT_WAIT",
	[CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT_RECORD",
	[CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM_ALLOC", [CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM_FREE",
	[CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = "BATCH_MEM_OP",
	[CU_GRAPH_NODE_TYPE_CONDITIONAL] = "CONDITIONAL",
};

static const char *memory_name(CUmemorytype type)
{
	return type == CU_MEMORYTYPE_HOST ? "host" : type == CU_MEMORYTYPE_DEVICE ? "device" :
	       type == CU_MEMORYTYPE_ARRAY ? "array" : "unified";
}

static void print_kernel(FILE *file, const struct graph_work *work, unsigned flags)
{
	const CUDA_KERNEL_NODE_PARAMS *params = &work->kernel.params;
	struct driver_launch_view view;

	/* The name lives in the module, which may be gone. */
	if (driver_launch_is_possible(work->operation)) {
		driver_launch_look(work->operation, &view);
		fprintf(file, "\\n%s", view.function->info.name);
	}
	if (flags & (VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS))
		fprintf(file, "\\n<<<(%u,%u,%u),(%u,%u,%u),%u>>>", params->gridDimX,
			params->gridDimY, params->gridDimZ, params->blockDimX, params->blockDimY,
			params->blockDimZ, params->sharedMemBytes);
	if (flags & (VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_ATTRIBUTES)) {
		for (unsigned i = 0; i < work->kernel.attribute_count; i++)
			fprintf(file, "\\nattribute %d", (int)work->kernel.attributes[i].id);
	}
}

static void print_copy(FILE *file, const CUDA_MEMCPY3D *copy, unsigned flags)
{
	fprintf(file, "\\n%s to %s", memory_name(copy->srcMemoryType),
		memory_name(copy->dstMemoryType));
	if (flags & (VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS))
		fprintf(file, "\\n%zu x %zu x %zu bytes", copy->WidthInBytes, copy->Height, copy->Depth);
}

static void print_conditional(FILE *file, const struct graph_conditional *conditional)
{
	static const char *const names[] = {
		[CU_GRAPH_COND_TYPE_IF] = "IF", [CU_GRAPH_COND_TYPE_WHILE] = "WHILE",
		[CU_GRAPH_COND_TYPE_SWITCH] = "SWITCH",
	};

	fprintf(file, "\\n%s of %u, handle %p", names[conditional->type], conditional->size,
		(const void *)conditional->condition);
}

static void print_node(FILE *file, const struct CUgraphNode_st *node, unsigned flags)
{
	const struct graph_payload *payload = &node->payload;

	fprintf(file, "\"n%" PRIu64 "\" [label=\"%" PRIu64 "\\n%s", node->id, node->id,
		type_names[payload->type]);
	if (payload->type == CU_GRAPH_NODE_TYPE_KERNEL)
		print_kernel(file, payload->work, flags);
	if (payload->type == CU_GRAPH_NODE_TYPE_MEMCPY)
		print_copy(file, &payload->work->copy, flags);
	if (payload->type == CU_GRAPH_NODE_TYPE_MEMSET &&
	    flags & (VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS))
		fprintf(file, "\\nvalue 0x%x, %zu x %zu elements of %u bytes",
			payload->work->fill.value, payload->work->fill.width,
			payload->work->fill.height, payload->work->fill.elementSize);
	if (payload->type == CU_GRAPH_NODE_TYPE_HOST &&
	    flags & (VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_HOST_NODE_PARAMS))
		fprintf(file, "\\n%p(%p)", (void *)(uintptr_t)payload->work->host.fn,
			payload->work->host.userData);
	if (payload->event && flags & (VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_EVENT_NODE_PARAMS))
		fprintf(file, "\\nevent %p", (void *)payload->event);
	if (payload->allocation && flags & (VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_MEM_ALLOC_NODE_PARAMS |
					    CU_GRAPH_DEBUG_DOT_FLAGS_MEM_FREE_NODE_PARAMS))
		fprintf(file, "\\naddress 0x%llx",
			(unsigned long long)driver_graph_allocation_address(payload->allocation));
	if (payload->conditional && flags & (VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_CONDITIONAL_NODE_PARAMS))
		print_conditional(file, payload->conditional);
	if (flags & (VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES))
		fprintf(file, "\\nhandle %p", (const void *)node);
	fprintf(file, "\"];\n");
}

static void print_graph(FILE *file, const struct CUgraph_st *graph, unsigned flags)
{
	const struct CUgraphNode_st *node;
	const struct CUgraph_st *below;

	fprintf(file, "subgraph \"cluster_%" PRIu64 "\" {\nlabel=\"graph %" PRIu64 "\";\n", graph->id,
		graph->id);
	for (node = graph->first; node; node = node->next) {
		print_node(file, node, flags);
		for (unsigned i = 0; (below = driver_graph_below(&node->payload, i)); i++)
			print_graph(file, below, flags);
	}
	for (node = graph->first; node; node = node->next) {
		for (size_t i = 0; i < node->dependents.count; i++)
			fprintf(file, "\"n%" PRIu64 "\" -> \"n%" PRIu64 "\";\n", node->id,
				node->dependents.nodes[i]->id);
	}
	fprintf(file, "}\n");
}

DRIVER_EXPORT CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
	DRIVER_CALL;
	CUresult result = driver_ready();
	size_t length = 0;
	char *text = NULL;
	FILE *file;
	bool written;

	if (result)
		return result;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	file = open_memstream(&text, &length);
	if (!file)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver_graph_enter(graph);
	if (!result) {
		fprintf(file, "digraph dot {\n");
		print_graph(file, graph, flags);
		fprintf(file, "}\n");
		driver_graph_unlock();
	}
	/* Not under the lock: the file may be one that blocks. */
	if (fclose(file) && !result)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!result) {
		file = fopen(path, "we");
		written = file && fwrite(text, 1, length, file) == length;
		if (file && fclose(file))
			written = false;
		if (!written)
			result = CUDA_ERROR_OPERATING_SYSTEM;
	}
	free(text);
	return result;
}
