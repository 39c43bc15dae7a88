/* Executable graphs: made from a graph, launched again and again.
 *
 * A launch runs the steps of a plan (driver_graph_plan.h).  Between records of events and waits for them,
 * all of them are one operation of the stream: that is what makes a launch of many small
 * kernels cheap. */
#include "driver_graph_plan.h"

#include "driver_capture.h"
#include "driver_event.h"
#include "driver_handle.h"

#include <stdlib.h>

struct CUgraphExec_st {
	struct CUgraphExec_st *next;	/* of all */
	unsigned references;		/* of the handle, and launches under way */
	struct CUgraph_st *graph;	/* private */
	cuuint64_t flags;
	struct graph_plan *plan;	/* NULL: to be made */
	struct driver_point last;	/* the last launch's end */
	struct CUgraphNode_st **index;	/* with those of child graphs, by origin */
	size_t index_count;
};

static struct CUgraphExec_st *all_executables;

/* ---- executables; with the lock ---- */

static void exec_drop(struct CUgraphExec_st *executable)
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

struct CUgraph_st *driver_graph_exec_graph(struct CUgraphExec_st *executable)
{
	return executable->graph;
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

#define FLAGS_KNOWN (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | \
		     CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | \
		     CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

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

static CUresult instantiate(CUgraphExec *out, struct CUgraph_st *graph,
			    CUDA_GRAPH_INSTANTIATE_PARAMS *params)
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
		if (!executable->index || driver_handle_add(executable, DRIVER_KIND_GRAPH_EXEC))
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result) {
		exec_drop(executable);
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
	size_t first, count;			/* of its steps */
};

static CUresult run_graph(struct driver_operation *operation, CUresult state)
{
	const struct graph_operation *launch = (struct graph_operation *)operation;

	if (!launch->first)	/* the first stretch */
		driver_graph_plan_reset(launch->plan);
	return driver_graph_plan_run(launch->plan, launch->first, launch->count, state);
}

static void release_graph(struct driver_operation *operation)
{
	struct graph_operation *launch = (struct graph_operation *)operation;

	driver_graph_lock();
	driver_graph_plan_drop(launch->plan);
	exec_drop(launch->executable);
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
	launch->executable = executable;
	launch->plan = plan;
	launch->first = first;
	launch->count = count;
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

DRIVER_EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle)
{
	struct driver_point before, last = { 0 };
	struct CUstream_st *stream;
	struct graph_plan *plan;
	bool capturing;
	CUresult result = driver_stream_enter_or_capture(handle, &stream, &capturing);

	if (!result)
		result = driver_graph_exec_enter(executable);
	if (result)
		return result;
	if (capturing) {
		struct CUgraph_st *graph = executable->graph;

		executable->references++;
		driver_graph_unlock();
		result = driver_capture_graph(stream, graph);
		driver_graph_lock();
		exec_drop(executable);
		driver_graph_unlock();
		return result;
	}
	result = prepare_launch(executable, stream, &plan, &before);
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
	exec_drop(executable);
	driver_graph_unlock();
	return result;
}

/* There is nothing to upload. */
DRIVER_EXPORT CUresult cuGraphUpload(CUgraphExec executable, CUstream handle)
{
	struct CUstream_st *stream;
	CUresult result = driver_stream_enter(handle, &stream);

	if (!result)
		result = driver_graph_exec_enter(executable);
	if (!result)
		driver_graph_unlock();
	return result;
}

/* ---- the API ---- */

DRIVER_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
						    CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	CUresult result;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	params->hErrNode_out = NULL;
	params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
	if (!out || params->flags & ~(cuuint64_t)FLAGS_KNOWN)
		return CUDA_ERROR_INVALID_VALUE;
	if (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
		return driver_unsupported("launching a graph from a kernel");
	result = driver_graph_enter(graph);
	if (result)
		return result;
	result = instantiate(out, graph, params);
	driver_graph_unlock();
	if (!result)
		params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
	return result;
}

DRIVER_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph,
							 CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	/* The stream is only for the upload, which is nothing. */
	return cuGraphInstantiateWithParams(out, graph, params);
}

DRIVER_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
						   unsigned long long flags)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS params = { .flags = flags };

	if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)	/* there is no stream for it */
		return CUDA_ERROR_INVALID_VALUE;
	return cuGraphInstantiateWithParams(out, graph, &params);
}

/* The form of CUDA 10 and 11 wrote what is wrong into a buffer. */
DRIVER_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error,
					     char *log, size_t bytes)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS params = { 0 };
	CUresult result = cuGraphInstantiateWithParams(out, graph, &params);

	if (error)
		*error = params.hErrNode_out;
	if (log && bytes)
		*log = '\0';
	return result;
}

DRIVER_EXPORT CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error,
					  char *log, size_t bytes)
{
	return cuGraphInstantiate_v2(out, graph, error, log, bytes);
}

DRIVER_EXPORT CUresult cuGraphExecGetFlags(CUgraphExec executable, cuuint64_t *flags)
{
	CUresult result = driver_graph_exec_enter(executable);

	if (result)
		return result;
	if (flags)
		*flags = executable->flags;
	driver_graph_unlock();
	return flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* That of the graph of its own, which it was instantiated into. */
DRIVER_EXPORT CUresult cuGraphExecGetId(CUgraphExec executable, unsigned int *id)
{
	CUresult result = driver_graph_exec_enter(executable);

	if (result)
		return result;
	if (id)
		*id = (unsigned)executable->graph->id;
	driver_graph_unlock();
	return id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Launches under way run to their ends. */
DRIVER_EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable)
{
	CUresult result = driver_graph_exec_enter(executable);

	if (result)
		return result;
	driver_handle_remove(executable, DRIVER_KIND_GRAPH_EXEC);
	exec_drop(executable);
	driver_graph_unlock();
	return CUDA_SUCCESS;
}

/* ---- switching nodes off ---- */

static bool can_be_disabled(const struct CUgraphNode_st *node)
{
	return node && (node->payload.type == CU_GRAPH_NODE_TYPE_KERNEL ||
			node->payload.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
			node->payload.type == CU_GRAPH_NODE_TYPE_MEMSET);
}

static CUresult enter_switch(CUgraphExec executable, CUgraphNode node, struct CUgraphNode_st **found)
{
	CUresult result = driver_graph_exec_enter(executable);

	if (result)
		return result;
	*found = driver_handle_is(node, DRIVER_KIND_GRAPH_NODE) ?
		 driver_graph_exec_find(executable, node) : NULL;
	if (can_be_disabled(*found))
		return CUDA_SUCCESS;
	driver_graph_unlock();
	return CUDA_ERROR_INVALID_VALUE;
}

DRIVER_EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec executable, CUgraphNode node,
					     unsigned int enabled)
{
	struct CUgraphNode_st *found;
	CUresult result = enter_switch(executable, node, &found);

	if (result)
		return result;
	found->disabled = !enabled;
	driver_graph_exec_changed(executable);
	driver_graph_unlock();
	return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec executable, CUgraphNode node,
					     unsigned int *enabled)
{
	struct CUgraphNode_st *found;
	CUresult result;

	if (!enabled)
		return CUDA_ERROR_INVALID_VALUE;
	result = enter_switch(executable, node, &found);
	if (result)
		return result;
	*enabled = !found->disabled;
	driver_graph_unlock();
	return CUDA_SUCCESS;
}
