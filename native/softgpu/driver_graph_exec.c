/* Executable graphs: made from a graph, launched again and again.
 *
 * A launch runs the nodes one after another, in an order that respects the edges: kernels
 * spread over all workers by themselves.  Between records of events and waits for them,
 * all nodes are one operation of the stream: that is what makes a launch of many small
 * kernels cheap.  A conditional node is one of its steps, with all that its bodies do. */
#include "driver_graph.h"

#include "driver_capture.h"
#include "driver_event.h"
#include "driver_graph_memory.h"
#include "driver_handle.h"
#include "driver_module.h"

#include <stdlib.h>
#include <string.h>

/* One thing that a launch does: run work, record or wait for an event, or choose. */
struct graph_step {
	struct graph_work *work;	/* held; NULL for the others */
	CUgraphNodeType type;
	CUevent event;
	struct graph_choice *choice;
};

/* What a conditional node does. */
struct graph_choice {
	struct graph_condition *condition;	/* held */
	CUgraphConditionalNodeType type;
	unsigned size;
	struct graph_plan *bodies[];
};

/* What launches do, until the executable is changed. */
struct graph_plan {
	unsigned references;		/* atomic: of the executable, and launches under way */
	bool has_host;			/* calls functions of the program's */
	size_t count, room;
	struct graph_step *steps;
	/* Allocations that outlive a launch, and that it frees though another made them. */
	size_t take_count, give_count, allocation_room;
	struct graph_allocation **takes, **gives;	/* the nodes hold them */
	struct user_reference *former;	/* what the executable kept before it was updated */
};

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

/* ---- plans ---- */

static void choice_free(struct graph_choice *choice);

/* With the lock. */
static void plan_drop(struct graph_plan *plan)
{
	if (__atomic_sub_fetch(&plan->references, 1, __ATOMIC_ACQ_REL))
		return;
	for (size_t i = 0; i < plan->count; i++) {
		if (plan->steps[i].work)
			driver_graph_work_drop(plan->steps[i].work);
		if (plan->steps[i].choice)
			choice_free(plan->steps[i].choice);
	}
	driver_graph_users_drop(&plan->former);
	free(plan->steps);
	free(plan->takes);
	free(plan->gives);
	free(plan);
}

static void choice_free(struct graph_choice *choice)
{
	while (choice->size)
		plan_drop(choice->bodies[--choice->size]);
	driver_graph_condition_drop(choice->condition);
	free(choice);
}

/* The step is the caller's to fill in; NULL without memory. */
static struct graph_step *plan_step(struct graph_plan *plan, CUgraphNodeType type)
{
	struct graph_step *step;

	if (plan->count == plan->room) {
		size_t room = plan->room ? 2 * plan->room : 16;
		struct graph_step *steps = realloc(plan->steps, room * sizeof *steps);

		if (!steps)
			return NULL;
		plan->steps = steps;
		plan->room = room;
	}
	step = &plan->steps[plan->count++];
	*step = (struct graph_step){ .type = type };
	plan->has_host |= type == CU_GRAPH_NODE_TYPE_HOST;
	return step;
}

static bool plan_payload(struct graph_plan *plan, const struct graph_payload *payload)
{
	struct graph_step *step = plan_step(plan, payload->type);

	if (!step)
		return false;
	step->work = payload->work;
	step->event = payload->event;
	if (step->work)
		driver_graph_work_hold(step->work);
	return true;
}

static bool plan_allocation(struct graph_plan *plan, const struct graph_payload *payload)
{
	struct graph_allocation *allocation = payload->allocation;

	if (plan->take_count + plan->give_count == plan->allocation_room) {
		size_t room = plan->allocation_room ? 2 * plan->allocation_room : 8;
		struct graph_allocation **takes = realloc(plan->takes, room * sizeof *takes), **gives;

		if (!takes)
			return false;
		plan->takes = takes;
		gives = realloc(plan->gives, room * sizeof *gives);
		if (!gives)
			return false;
		plan->gives = gives;
		plan->allocation_room = room;
	}
	if (payload->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
		plan->takes[plan->take_count++] = allocation;
		return true;
	}
	/* What this launch itself allocates before is no concern of others. */
	for (size_t i = 0; i < plan->take_count; i++) {
		if (plan->takes[i] == allocation) {
			plan->takes[i] = plan->takes[--plan->take_count];
			return true;
		}
	}
	plan->gives[plan->give_count++] = allocation;
	return true;
}

static CUresult plan_graph(struct graph_plan *plan, struct CUgraph_st *graph,
			   struct CUgraphNode_st **error);
static CUresult plan_make(struct CUgraph_st *graph, struct graph_plan **out,
			  struct CUgraphNode_st **error);

/* Each body has a plan of its own. */
static CUresult plan_choice(struct graph_plan *plan, const struct graph_conditional *conditional,
			    struct CUgraphNode_st **error)
{
	struct graph_choice *choice =
		calloc(1, sizeof *choice + conditional->size * sizeof *choice->bodies);
	struct graph_step *step = choice ? plan_step(plan, CU_GRAPH_NODE_TYPE_CONDITIONAL) : NULL;
	CUresult result = CUDA_SUCCESS;

	if (!step) {
		free(choice);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	step->choice = choice;
	choice->condition = conditional->condition;
	driver_graph_condition_hold(choice->condition);
	choice->type = conditional->type;
	while (choice->size < conditional->size && !result) {
		result = plan_make(conditional->bodies[choice->size], &choice->bodies[choice->size],
				   error);
		choice->size += !result;
	}
	return result;
}

static CUresult plan_node(struct graph_plan *plan, const struct CUgraphNode_st *node,
			  struct CUgraphNode_st **error)
{
	bool done = true;

	if (node->disabled)
		return CUDA_SUCCESS;
	if (node->payload.child)
		return plan_graph(plan, node->payload.child, error);
	if (node->payload.conditional)
		return plan_choice(plan, node->payload.conditional, error);
	if (node->payload.allocation)
		done = plan_allocation(plan, &node->payload);
	else if (node->payload.work || node->payload.event)
		done = plan_payload(plan, &node->payload);
	return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Nodes whose dependencies are all planned, first come first served (A. B. Kahn, 1962).  What
 * is left over lies on a ring. */
static CUresult plan_graph(struct graph_plan *plan, struct CUgraph_st *graph,
			   struct CUgraphNode_st **error)
{
	struct CUgraphNode_st *node, *first = NULL, **last = &first;
	size_t left = graph->count;
	CUresult result = CUDA_SUCCESS;

	/* The queue is linked by `pair`. */
	for (node = graph->first; node; node = node->next) {
		node->pending = node->dependencies.count;
		node->pair = NULL;
		if (!node->pending) {
			*last = node;
			last = &node->pair;
		}
	}
	for (node = first; node && !result; node = node->pair) {
		result = plan_node(plan, node, error);
		left--;
		for (size_t i = 0; i < node->dependents.count; i++) {
			struct CUgraphNode_st *dependent = node->dependents.nodes[i];

			if (!--dependent->pending) {
				*last = dependent;
				last = &dependent->pair;
			}
		}
	}
	if (!result && left) {
		for (node = graph->first; node && !node->pending; node = node->next)
			;
		*error = node;
		return CUDA_ERROR_INVALID_VALUE;
	}
	return result;
}

static CUresult plan_make(struct CUgraph_st *graph, struct graph_plan **out,
			  struct CUgraphNode_st **error)
{
	struct graph_plan *plan = calloc(1, sizeof *plan);
	CUresult result;

	if (!plan)
		return CUDA_ERROR_OUT_OF_MEMORY;
	plan->references = 1;
	result = plan_graph(plan, graph, error);
	if (result) {
		plan_drop(plan);
		return result;
	}
	*out = plan;
	return CUDA_SUCCESS;
}

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
		plan_drop(executable->plan);
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
		plan_drop(executable->plan);
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
	result = plan_make(executable->graph, &executable->plan, &wrong);
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

static CUresult run_work(const struct graph_work *work, CUresult state)
{
	CUresult result = work->context ? driver_context_state(work->context) : CUDA_SUCCESS;

	if (!result)
		result = work->operation->run(work->operation, state);
	/* The error is that of the context where it happened, and of the stream's. */
	if (result && work->context)
		driver_context_fail(work->context, result);
	return result;
}

/* The body that is to run now, or NULL. */
static const struct graph_plan *choose(const struct graph_choice *choice)
{
	unsigned value = driver_graph_condition_value(choice->condition);
	unsigned index = choice->type == CU_GRAPH_COND_TYPE_SWITCH ? value : !value;

	return index < choice->size ? choice->bodies[index] : NULL;
}

static CUresult run_steps(const struct graph_plan *plan, size_t first, size_t count, CUresult state);

static CUresult run_choice(const struct graph_choice *choice, CUresult state)
{
	struct CUctx_st *context = driver_graph_condition_context(choice->condition);
	const struct graph_plan *body = choose(choice);
	CUresult result = driver_context_state(context);

	while (body && !result) {
		result = run_steps(body, 0, body->count, state);
		if (choice->type != CU_GRAPH_COND_TYPE_WHILE)
			break;
		/* Kernels of a context that goes end early, and so does a loop of short ones. */
		if (!result && __atomic_load_n(&context->cancel, __ATOMIC_RELAXED))
			result = driver_engine_result(ENGINE_CANCELLED);
		body = choose(choice);
	}
	return result;
}

static CUresult run_steps(const struct graph_plan *plan, size_t first, size_t count, CUresult state)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = first; i < first + count && !result; i++) {
		const struct graph_step *step = &plan->steps[i];

		result = step->choice ? run_choice(step->choice, state) : run_work(step->work, state);
	}
	return result;
}

static void reset_conditions(const struct graph_plan *plan)
{
	for (size_t i = 0; i < plan->count; i++) {
		const struct graph_choice *choice = plan->steps[i].choice;

		if (!choice)
			continue;
		driver_graph_condition_reset(choice->condition);
		for (unsigned k = 0; k < choice->size; k++)
			reset_conditions(choice->bodies[k]);
	}
}

static CUresult run_graph(struct driver_operation *operation, CUresult state)
{
	const struct graph_operation *launch = (struct graph_operation *)operation;

	if (!launch->first)	/* the first stretch */
		reset_conditions(launch->plan);
	return run_steps(launch->plan, launch->first, launch->count, state);
}

static void release_graph(struct driver_operation *operation)
{
	struct graph_operation *launch = (struct graph_operation *)operation;

	driver_graph_lock();
	plan_drop(launch->plan);
	exec_drop(launch->executable);
	driver_graph_unlock();
	free(launch);
}

static bool is_of_event(const struct graph_step *step)
{
	return step->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ||
	       step->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT;
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
	__atomic_add_fetch(&plan->references, 1, __ATOMIC_RELAXED);
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

		while (end < plan->count && !is_of_event(&plan->steps[end]))
			end++;
		/* The first and the last may be empty: something has to wait for the launch
		 * before, and to be waited for. */
		driver_point_drop(last);
		result = submit_stretch(stream, executable, plan, at, end - at, before, last);
		if (result || end == plan->count)
			return result;
		for (at = end; at < plan->count && is_of_event(&plan->steps[at]); at++) {
			result = submit_event(stream, &plan->steps[at]);
			if (result)
				return result;
		}
	}
}

/* Functions that have been unloaded, events that are destroyed or of another context: nothing is
 * launched. */
static CUresult check_steps(const struct graph_plan *plan, const struct CUstream_st *stream)
{
	for (size_t i = 0; i < plan->count; i++) {
		const struct graph_step *step = &plan->steps[i];

		for (unsigned k = 0; step->choice && k < step->choice->size; k++) {
			if (check_steps(step->choice->bodies[k], stream))
				return CUDA_ERROR_INVALID_HANDLE;
		}
		if (step->type == CU_GRAPH_NODE_TYPE_KERNEL &&
		    !driver_launch_is_possible(step->work->operation))
			return CUDA_ERROR_INVALID_HANDLE;
		if (is_of_event(step) && !driver_handle_is(step->event, DRIVER_KIND_EVENT))
			return CUDA_ERROR_INVALID_HANDLE;
		if (step->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD &&
		    !driver_event_is_of(step->event, stream->context))
			return CUDA_ERROR_INVALID_HANDLE;
	}
	return CUDA_SUCCESS;
}

/* What this launch allocates is live from now on, what it frees no longer; all or nothing. */
static CUresult settle_allocations(const struct CUgraphExec_st *executable,
				   const struct graph_plan *plan)
{
	bool again = executable->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
	size_t gives = 0, takes = 0;

	while (gives < plan->give_count &&
	       driver_graph_allocation_set_live(plan->gives[gives], false))
		gives++;
	if (gives == plan->give_count) {
		while (takes < plan->take_count &&
		       (driver_graph_allocation_set_live(plan->takes[takes], true) || again))
			takes++;
		if (takes == plan->take_count)
			return CUDA_SUCCESS;
	}
	while (takes--)
		driver_graph_allocation_set_live(plan->takes[takes], false);
	while (gives--)
		driver_graph_allocation_set_live(plan->gives[gives], true);
	return CUDA_ERROR_INVALID_VALUE;
}

/* With the lock: the plan and the end of the launch before, both held. */
static CUresult prepare_launch(struct CUgraphExec_st *executable, const struct CUstream_st *stream,
			       struct graph_plan **plan, struct driver_point *before)
{
	struct CUgraphNode_st *wrong;
	CUresult result;

	if (!executable->plan) {
		result = plan_make(executable->graph, &executable->plan, &wrong);
		if (result)
			return result;
	}
	result = check_steps(executable->plan, stream);
	if (!result)
		result = settle_allocations(executable, executable->plan);
	if (result)
		return result;
	executable->references++;
	*plan = executable->plan;
	__atomic_add_fetch(&(*plan)->references, 1, __ATOMIC_RELAXED);
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
	plan_drop(plan);
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
