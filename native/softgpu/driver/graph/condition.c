/* Conditions: values that kernels set and that conditional nodes choose by.
 *
 * What CUDA's documentation says of them, and where it is silent, is told in docs/softgpu.md. */
#include "condition.h"

#include "../handle.h"
#include "graph.h"

#include <stdlib.h>

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

void driver_graph_condition_reset(struct graph_condition *condition)
{
	if (condition->is_reset)
		__atomic_store_n(&condition->value, condition->first_value, __ATOMIC_RELAXED);
}

unsigned driver_graph_condition_value(const struct graph_condition *condition)
{
	return __atomic_load_n(&condition->value, __ATOMIC_RELAXED);
}

struct graph_condition *driver_graph_condition_of(uint64_t handle)
{
	struct graph_condition *condition = (struct graph_condition *)(uintptr_t)handle;

	return driver_handle_is(condition, DRIVER_KIND_GRAPH_CONDITION) ? condition : NULL;
}

bool driver_graph_condition_set(const struct CUctx_st *context, uint64_t handle, uint32_t value)
{
	struct graph_condition *condition;
	bool found;

	driver_graph_lock();
	condition = driver_graph_condition_of(handle);
	found = condition && condition->context == context;
	if (found)
		__atomic_store_n(&condition->value, value, __ATOMIC_RELAXED);
	driver_graph_unlock();
	return found;
}

CUresult driver_graph_condition_make(struct CUgraph_st *graph, struct CUctx_st *context, unsigned value,
				     unsigned flags, CUgraphConditionalHandle *handle)
{
	struct graph_condition *condition = calloc(1, sizeof *condition);

	if (!condition || driver_handle_add(condition, DRIVER_KIND_GRAPH_CONDITION, NULL)) {
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
