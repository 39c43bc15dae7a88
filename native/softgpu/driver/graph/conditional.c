/* Conditional nodes: what they are to be, and which can't be. */
#include "conditional.h"

#include "../memory.h"
#include "graph.h"

void driver_graph_conditional_describe(struct graph_conditional *conditional,
				       CUDA_CONDITIONAL_NODE_PARAMS *params)
{
	*params = (CUDA_CONDITIONAL_NODE_PARAMS){
		.handle = (uintptr_t)conditional->condition,
		.type = conditional->type,
		.size = conditional->size,
		.phGraph_out = conditional->bodies,
		.ctx = conditional->condition->context,
	};
}

bool driver_graph_conditional_is_alike(const struct graph_conditional *now,
				       const struct graph_conditional *wanted)
{
	return now->type == wanted->type && now->size == wanted->size &&
	       now->condition->context == wanted->condition->context;
}

void driver_graph_conditional_follow(struct graph_conditional *conditional,
				     const struct graph_conditional *other)
{
	driver_graph_condition_hold(other->condition);
	driver_graph_condition_drop(conditional->condition);
	conditional->condition = other->condition;
}

/* ---- what executables are asked for ---- */

bool driver_graph_has_unused_condition(const struct CUgraph_st *graph)
{
	const struct CUgraph_st *below;

	for (const struct graph_condition *condition = graph->conditions; condition;
	     condition = condition->next) {
		if (!condition->nodes)
			return true;
	}
	for (const struct CUgraphNode_st *node = graph->first; node; node = node->next) {
		for (unsigned i = 0; (below = driver_graph_below(&node->payload, i)); i++) {
			if (driver_graph_has_unused_condition(below))
				return true;
		}
	}
	return false;
}

/* Memory of a device, or pinned. */
static bool is_reachable(CUmemorytype type, const void *host, CUdeviceptr device)
{
	uintptr_t address = type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device;

	return type != CU_MEMORYTYPE_ARRAY && driver_memory_kind_of(address) != DRIVER_MEMORY_NONE;
}

static bool is_copy_fit(const CUDA_MEMCPY3D *copy)
{
	return is_reachable(copy->srcMemoryType, copy->srcHost, copy->srcDevice) &&
	       is_reachable(copy->dstMemoryType, copy->dstHost, copy->dstDevice);
}

/* May the node itself be in a body that runs in that context? */
static bool is_fit(const struct graph_payload *payload, const struct CUctx_st *context)
{
	switch (payload->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return payload->work->context == context;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return payload->work->context == context && is_copy_fit(&payload->work->copy);
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return payload->conditional->condition->context == context;
	case CU_GRAPH_NODE_TYPE_EMPTY:
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return true;
	default:
		return false;
	}
}

/* `context`: NULL outside of bodies. */
static struct CUgraphNode_st *unfit_node(const struct CUgraph_st *graph,
					 const struct CUctx_st *context)
{
	const struct CUgraph_st *below;
	struct CUgraphNode_st *unfit;

	for (struct CUgraphNode_st *node = graph->first; node; node = node->next) {
		const struct graph_payload *payload = &node->payload;
		const struct CUctx_st *inner = payload->conditional ?
					       payload->conditional->condition->context : context;

		if (context && !is_fit(payload, context))
			return node;
		for (unsigned i = 0; (below = driver_graph_below(payload, i)); i++) {
			unfit = unfit_node(below, inner);
			if (unfit)
				return unfit;
		}
	}
	return NULL;
}

struct CUgraphNode_st *driver_graph_unfit_node(const struct CUgraph_st *graph)
{
	return unfit_node(graph, NULL);
}
