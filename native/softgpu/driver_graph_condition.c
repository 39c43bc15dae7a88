/* Conditions: values that kernels set and that conditional nodes choose by.
 *
 * What CUDA's documentation says of them, and where it is silent, is told in docs/softgpu.md. */
#include "driver_graph.h"

#include "driver_handle.h"
#include "driver_memory.h"

#include <stdlib.h>

/* Its address is the handle that programs and kernels have. */
struct graph_condition {
	unsigned references;		/* of the graph that it was made for, and of nodes */
	struct graph_condition *next;	/* of that graph */
	struct CUgraph_st *graph;	/* NULL: it is gone */
	struct CUctx_st *context;	/* held */
	unsigned nodes;			/* of the program's graphs, that choose by it */
	unsigned first_value;		/* of each launch, where that is asked for */
	bool is_reset;
	uint32_t value;			/* atomic */
};

/* ---- conditions ---- */

void driver_graph_condition_hold(struct graph_condition *condition)
{
	condition->references++;
}

void driver_graph_condition_drop(struct graph_condition *condition)
{
	if (--condition->references)
		return;
	driver_handle_remove(condition, DRIVER_KIND_GRAPH_CONDITION);
	driver_context_drop(condition->context);
	free(condition);
}

void driver_graph_conditions_end(struct CUgraph_st *graph)
{
	while (graph->conditions) {
		struct graph_condition *condition = graph->conditions;

		graph->conditions = condition->next;
		condition->graph = NULL;
		driver_graph_condition_drop(condition);
	}
}

struct CUctx_st *driver_graph_condition_context(const struct graph_condition *condition)
{
	return condition->context;
}

void driver_graph_condition_reset(struct graph_condition *condition)
{
	if (condition->is_reset)
		__atomic_store_n(&condition->value, condition->first_value, __ATOMIC_RELAXED);
}

unsigned driver_graph_condition_value(const struct graph_condition *condition)
{
	return __atomic_load_n(&condition->value, __ATOMIC_RELAXED);
}

static struct graph_condition *condition_of(uint64_t handle)
{
	struct graph_condition *condition = (struct graph_condition *)(uintptr_t)handle;

	return driver_handle_is(condition, DRIVER_KIND_GRAPH_CONDITION) ? condition : NULL;
}

bool driver_graph_condition_set(const struct CUctx_st *context, uint64_t handle, uint32_t value)
{
	struct graph_condition *condition;
	bool found;

	driver_graph_lock();
	condition = condition_of(handle);
	found = condition && condition->context == context;
	if (found)
		__atomic_store_n(&condition->value, value, __ATOMIC_RELAXED);
	driver_graph_unlock();
	return found;
}

/* With the lock. */
static CUresult condition_make(struct CUgraph_st *graph, struct CUctx_st *context, unsigned value,
			       unsigned flags, CUgraphConditionalHandle *handle)
{
	struct graph_condition *condition = calloc(1, sizeof *condition);

	if (!condition || driver_handle_add(condition, DRIVER_KIND_GRAPH_CONDITION)) {
		free(condition);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	condition->references = 1;
	condition->graph = graph;
	condition->context = context;
	driver_context_hold(context);
	condition->first_value = value;
	condition->is_reset = flags & CU_GRAPH_COND_ASSIGN_DEFAULT;
	condition->next = graph->conditions;
	graph->conditions = condition;
	*handle = (uintptr_t)condition;
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph graph,
						      CUcontext wanted, unsigned int value,
						      unsigned int flags)
{
	struct CUctx_st *context;
	CUresult result = driver_graph_context(wanted, &context);

	if (result)
		return result;
	if (!out || flags & ~CU_GRAPH_COND_ASSIGN_DEFAULT)
		return CUDA_ERROR_INVALID_VALUE;
	result = driver_graph_enter(graph);
	if (result)
		return result;
	result = condition_make(graph, context, value, flags, out);
	driver_graph_unlock();
	return result;
}

/* ---- what nodes choose from ---- */

static bool is_size(CUgraphConditionalNodeType type, unsigned size)
{
	switch (type) {
	case CU_GRAPH_COND_TYPE_IF:
		return size == 1 || size == 2;
	case CU_GRAPH_COND_TYPE_WHILE:
		return size == 1;
	case CU_GRAPH_COND_TYPE_SWITCH:
		return size;
	}
	return false;
}

/* Was the condition made for this graph, or one that it lies in? */
static bool is_for(const struct graph_condition *condition, const struct CUgraph_st *graph)
{
	while (graph && graph != condition->graph)
		graph = graph->parent ? graph->parent->graph : NULL;
	return graph;
}

/* With room for bodies, of which there is none yet. */
static struct graph_conditional *conditional_make(struct graph_condition *condition,
						  CUgraphConditionalNodeType type, unsigned size,
						  bool is_private)
{
	struct graph_conditional *conditional =
		calloc(1, sizeof *conditional + size * sizeof *conditional->bodies);

	if (!conditional)
		return NULL;
	conditional->condition = condition;
	conditional->type = type;
	conditional->is_private = is_private;
	driver_graph_condition_hold(condition);
	condition->nodes += !is_private;
	return conditional;
}

CUresult driver_graph_conditional_make(const struct CUgraph_st *graph, struct CUctx_st *context,
				       const CUDA_CONDITIONAL_NODE_PARAMS *params,
				       struct graph_payload *payload)
{
	struct graph_condition *condition = condition_of(params->handle);
	struct graph_conditional *conditional;

	if (!condition || !is_size(params->type, params->size) || condition->context != context ||
	    !is_for(condition, graph))
		return CUDA_ERROR_INVALID_VALUE;
	conditional = params->size > GRAPH_BODIES_MAX ? NULL :
		      conditional_make(condition, params->type, params->size, false);
	if (!conditional)
		return CUDA_ERROR_OUT_OF_MEMORY;
	while (conditional->size < params->size) {
		struct CUgraph_st *body = driver_graph_make(false);

		if (!body) {
			driver_graph_conditional_free(conditional);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		conditional->bodies[conditional->size++] = body;
	}
	*payload = (struct graph_payload){ .type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
					   .conditional = conditional };
	return CUDA_SUCCESS;
}

CUresult driver_graph_conditional_copy(const struct graph_conditional *from,
				       struct graph_conditional **to)
{
	struct graph_conditional *copy =
		conditional_make(from->condition, from->type, from->size, true);
	CUresult result = copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	while (!result && copy->size < from->size) {
		result = driver_graph_copy(from->bodies[copy->size], true, &copy->bodies[copy->size]);
		copy->size += !result;
	}
	if (result && copy)
		driver_graph_conditional_free(copy);
	else
		*to = copy;
	return result;
}

void driver_graph_conditional_free(struct graph_conditional *conditional)
{
	while (conditional->size)
		driver_graph_free(conditional->bodies[--conditional->size]);
	conditional->condition->nodes -= !conditional->is_private;
	driver_graph_condition_drop(conditional->condition);
	free(conditional);
}

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
