/* Executable graphs: made from a graph, launched again and again.
 *
 * A launch runs the steps of a plan (plan.h).  Between records of events and waits for them,
 * all of them are one operation of the stream: that is what makes a launch of many small
 * kernels cheap. */
#include "exec.h"

#include "../event.h"
#include "../handle.h"
#include "conditional.h"
#include "user.h"

#include <stdlib.h>

static struct CUgraphExec_st *all_executables;

/* ---- executables; with the lock ---- */

void driver_graph_exec_drop(struct CUgraphExec_st *executable)
{
	struct CUgraphExec_st **link = &all_executables;

	if (--executable->references)
		return;
	while (*link != executable)
		link = &(*link)->next;
	*link = executable->next;
	if (executable->plan)
		driver_graph_plan_drop(executable->plan);
	driver_graph_free(executable->graph);
	driver_point_drop(&executable->last);
	free(executable->index);
	free(executable);
}

CUresult driver_graph_exec_enter(CUgraphExec executable)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	driver_graph_lock();
	if (driver_handle_is(executable, DRIVER_KIND_GRAPH_EXEC))
		return CUDA_SUCCESS;
	driver_graph_unlock();
	return CUDA_ERROR_INVALID_VALUE;
}

void driver_graph_exec_changed(struct CUgraphExec_st *executable)
{
	if (executable->plan)
		driver_graph_plan_drop(executable->plan);
	executable->plan = NULL;
}

void driver_graph_exec_keep(struct CUgraphExec_st *executable, struct user_reference *former)
{
	if (executable->plan)
		driver_graph_users_add(&executable->plan->former, former);
	/* Of an earlier plan some launch may be under way: what it uses stays as long as the executable. */
	else if (executable->references > 1)
		driver_graph_users_add(&executable->graph->users, former);
	else
		driver_graph_users_drop(&former);
}

static size_t count_all(const struct CUgraph_st *graph)
{
	const struct CUgraph_st *below;
	size_t count = graph->count;

	for (const struct CUgraphNode_st *node = graph->first; node; node = node->next) {
		for (unsigned i = 0; (below = driver_graph_below(&node->payload, i)); i++)
			count += count_all(below);
	}
	return count;
}

static void index_all(struct CUgraphExec_st *executable, const struct CUgraph_st *graph)
{
	const struct CUgraph_st *below;

	for (struct CUgraphNode_st *node = graph->first; node; node = node->next) {
		executable->index[executable->index_count++] = node;
		for (unsigned i = 0; (below = driver_graph_below(&node->payload, i)); i++)
			index_all(executable, below);
	}
}

static int by_origin(const void *a, const void *b)
{
	const struct CUgraphNode_st *const *first = a, *const *second = b;

	return ((*first)->origin > (*second)->origin) - ((*first)->origin < (*second)->origin);
}

struct CUgraphNode_st *driver_graph_exec_find(struct CUgraphExec_st *executable,
					      const struct CUgraphNode_st *node)
{
	size_t low = 0, high = executable->index_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (executable->index[middle]->origin < node->id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < executable->index_count && executable->index[low]->origin == node->id ?
	       executable->index[low] : NULL;
}

static bool is_instantiated(const struct CUgraph_st *graph)
{
	for (struct CUgraphExec_st *other = all_executables; other; other = other->next) {
		if (other->graph->origin == graph->id)
			return true;
	}
	return false;
}

/* The node of the program's graph that a private node is a copy of. */
static CUgraphNode original_of(const struct CUgraph_st *graph, const struct CUgraphNode_st *copy)
{
	const struct CUgraph_st *below;

	for (struct CUgraphNode_st *node = graph->first; node; node = node->next) {
		if (node->id == copy->origin)
			return node;
		for (unsigned i = 0; (below = driver_graph_below(&node->payload, i)); i++) {
			CUgraphNode found = original_of(below, copy);

			if (found)
				return found;
		}
	}
	return NULL;
}

/* What no executable can be made of. */
static CUresult check_graph(struct CUgraph_st *graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	if (graph->captures)
		return CUDA_ERROR_INVALID_VALUE;
	params->hErrNode_out = driver_graph_unfit_node(graph);
	if (params->hErrNode_out) {
		params->result_out = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (driver_graph_has_unused_condition(graph)) {
		params->result_out = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
		return CUDA_ERROR_INVALID_VALUE;
	}
	if ((driver_graph_has_memory(graph) || driver_graph_has_conditional(graph)) &&
	    is_instantiated(graph))
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

CUresult driver_graph_exec_make(struct CUgraph_st *graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
				CUgraphExec *out)
{
	struct CUgraphNode_st *wrong = NULL;
	struct CUgraphExec_st *executable;
	CUresult result = check_graph(graph, params);

	if (result)
		return result;
	executable = calloc(1, sizeof *executable);
	if (!executable)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver_graph_copy(graph, true, &executable->graph);
	if (result) {
		free(executable);
		return result;
	}
	executable->references = 1;
	executable->flags = params->flags & ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	executable->next = all_executables;
	all_executables = executable;
	result = driver_graph_plan_make(executable->graph, &executable->plan, &wrong);
	if (wrong) {
		params->hErrNode_out = original_of(graph, wrong);
		params->result_out = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
	}
	if (!result) {
		executable->index = malloc((count_all(executable->graph) + 1) *
					   sizeof *executable->index);
		if (!executable->index || driver_handle_add(executable, DRIVER_KIND_GRAPH_EXEC, NULL))
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result) {
		driver_graph_exec_drop(executable);
		return result;
	}
	index_all(executable, executable->graph);
	qsort(executable->index, executable->index_count, sizeof *executable->index, by_origin);
	*out = executable;
	return CUDA_SUCCESS;
}

/* ---- launching ---- */

struct graph_operation {
	struct driver_operation base;
	struct CUgraphExec_st *executable;	/* held */
	struct graph_plan *plan;		/* held */
	size_t next, end;			/* of its steps */
	bool begins;				/* with the first of all steps, and has not begun */
};

static CUresult run_graph(struct driver_operation *operation, CUresult state)
{
	struct graph_operation *launch = (struct graph_operation *)operation;

	if (launch->begins)
		driver_graph_plan_reset(launch->plan);
	launch->begins = false;
	return driver_graph_plan_run(launch->plan, &launch->next, launch->end, state);
}

static void release_graph(struct driver_operation *operation)
{
	struct graph_operation *launch = (struct graph_operation *)operation;

	driver_graph_lock();
	driver_graph_plan_drop(launch->plan);
	driver_graph_exec_drop(launch->executable);
	driver_graph_unlock();
	free(launch);
}

/* A stretch of steps without events; *point becomes its end. */
static CUresult submit_stretch(struct CUstream_st *stream, struct CUgraphExec_st *executable,
			       struct graph_plan *plan, size_t first, size_t count,
			       const struct driver_point *after, struct driver_point *point)
{
	struct graph_operation *launch = calloc(1, sizeof *launch);

	if (!launch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	launch->base.run = run_graph;
	launch->base.release = release_graph;
	launch->base.run_by_waiter = !plan->has_host;
	launch->base.run_again = true;
	launch->executable = executable;
	launch->plan = plan;
	launch->next = first;
	launch->end = first + count;
	launch->begins = !first;
	driver_graph_plan_hold(plan);
	driver_graph_lock();
	executable->references++;
	driver_graph_unlock();
	if (after->stream && driver_operation_after(&launch->base, after)) {
		release_graph(&launch->base);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return driver_stream_submit(stream, &launch->base, 0, point);
}

static CUresult submit_event(struct CUstream_st *stream, const struct graph_step *step)
{
	if (!driver_handle_is(step->event, DRIVER_KIND_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	return step->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ?
	       driver_event_submit_record(step->event, stream) :
	       driver_event_submit_wait(step->event, stream);
}

/* All of the plan; the launch before it ends first.  *last becomes its end. */
static CUresult submit_plan(struct CUstream_st *stream, struct CUgraphExec_st *executable,
			    struct graph_plan *plan, const struct driver_point *before,
			    struct driver_point *last)
{
	size_t at = 0;
	CUresult result;

	for (;;) {
		size_t end = at;

		while (end < plan->count && !driver_graph_step_is_of_event(&plan->steps[end]))
			end++;
		/* The first and the last may be empty: something has to wait for the launch
		 * before, and to be waited for. */
		driver_point_drop(last);
		result = submit_stretch(stream, executable, plan, at, end - at, before, last);
		if (result || end == plan->count)
			return result;
		for (at = end; at < plan->count && driver_graph_step_is_of_event(&plan->steps[at]); at++) {
			result = submit_event(stream, &plan->steps[at]);
			if (result)
				return result;
		}
	}
}

/* With the lock: the plan and the end of the launch before, both held. */
static CUresult prepare_launch(struct CUgraphExec_st *executable, const struct CUstream_st *stream,
			       struct graph_plan **plan, struct driver_point *before)
{
	struct CUgraphNode_st *wrong;
	CUresult result;

	if (!executable->plan) {
		result = driver_graph_plan_make(executable->graph, &executable->plan, &wrong);
		if (result)
			return result;
	}
	result = driver_graph_plan_check(executable->plan, stream);
	if (!result)
		result = driver_graph_plan_settle(
			executable->plan, executable->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
	if (result)
		return result;
	executable->references++;
	*plan = executable->plan;
	driver_graph_plan_hold(*plan);
	*before = executable->last;
	if (before->stream)
		driver_stream_hold(before->stream);
	return CUDA_SUCCESS;
}

CUresult driver_graph_exec_launch(struct CUgraphExec_st *executable, struct CUstream_st *stream)
{
	struct driver_point before, last = { 0 };
	struct graph_plan *plan;
	CUresult result = prepare_launch(executable, stream, &plan, &before);

	driver_graph_unlock();
	if (result)
		return result;
	result = submit_plan(stream, executable, plan, &before, &last);
	driver_point_drop(&before);
	driver_graph_lock();
	driver_graph_plan_drop(plan);
	if (last.stream) {
		before = executable->last;
		executable->last = last;
		driver_point_drop(&before);
	}
	driver_graph_exec_drop(executable);
	driver_graph_unlock();
	return result;
}
